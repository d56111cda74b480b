"""Figures of evaluations: intervals, the paired gain over the first one, the best version. Pure.

Every evaluation of a run meets the same instances with the same sampler seeds (see seeds), so two of
them are compared instance by instance: the interval of the mean difference leaves out how much the
instances differ among themselves. An episode that failed is no reward of 0: its instance is missing
from that evaluation, and from every comparison with it.

A version that has lost too much of a protected environment is not the best one (see retention).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from services.scheduler.ledger.intervals import Interval, mean_interval, wilson_interval
from services.scheduler.ledger.retention import Retention, retention
from services.scheduler.state.evaluations import EvaluationRecord

FINAL = "final"


@dataclass(frozen=True, slots=True)
class Judgement:
    """One evaluation's figures over its episodes done. gain: None without an earlier evaluation.

    pairs: instances that the gain, a mean difference of rewards, is over. retention: of a protected
    environment, compared with the earlier evaluation. environments: the same of each environment of a
    mixture, by its label.
    """

    reward: Interval
    win_rate: Interval
    gain: Interval | None = None
    pairs: int = 0
    retention: Retention | None = None
    environments: Mapping[str, Judgement] = field(default_factory=dict)


def judge(evaluation: EvaluationRecord, baseline: EvaluationRecord | None) -> Judgement:
    """The figures of an evaluation, which may be in progress, with those of `baseline`.

    Instances of one task are one observation, their mean: they are no independent samples of what the policy
    does with tasks in general (clustered errors, Miller 2024, arXiv 2411.00640, 2.2).
    """
    compared = baseline is not None and baseline.name != evaluation.name
    before = rewards(baseline) if compared and baseline is not None else None
    after, won, labels = rewards(evaluation), wins(evaluation), evaluation.environments
    parts = max(1, len(labels))
    tasks = evaluation.tasks or [0] * parts
    observed = [
        _Observed.of(after[place::parts], won[place::parts], before and before[place::parts], tasks[place])
        for place in range(parts)
    ]
    judgement = _judgement(observed, compared=compared)
    if not labels:
        return judgement
    kept = retentions(evaluation, baseline) if compared and baseline is not None else {}
    each = {
        label: replace(_judgement([part], compared=compared), retention=kept.get(label))
        for label, part in zip(labels, observed, strict=True)
    }
    return replace(judgement, environments=each)


def retentions(evaluation: EvaluationRecord, first: EvaluationRecord) -> dict[str, Retention]:
    """Judges what a version has kept of each protected environment since the first evaluation, by its label.

    Empty for that evaluation itself, where all began, and for one in progress.
    """
    if not evaluation.protected or evaluation.name == first.name or not evaluation.finished:
        return {}
    labels = evaluation.environments
    tasks = tuple(evaluation.tasks or [0] * len(labels))
    lowest = tuple(evaluation.protected.get(label, math.nan) for label in labels)
    kept = _retentions(first.reward_data, evaluation.reward_data, tasks, lowest, evaluation.protected_loss)
    return {label: judged for label, judged in zip(labels, kept, strict=True) if judged is not None}


@dataclass(frozen=True, slots=True)
class _Observed:
    """The independent observations of one environment's instances, without those that are missing.

    pairs: instances that the gains are over.
    """

    rewards: list[float]
    wins: list[float]
    gains: list[float]
    pairs: int

    @classmethod
    def of(cls, after: list[float], won: list[float], before: list[float] | None, tasks: int) -> _Observed:
        """before: rewards in the evaluation to compare with, if there is one. tasks: that the instances play
        in turns, 0 if each is another one."""
        gains = [later - earlier for earlier, later in zip(before or (), after, strict=False)]
        return cls(
            rewards=_done(_means(after, tasks)),
            wins=_done(_means(won, tasks)),
            gains=_done(_means(gains, tasks)),
            pairs=len(_done(gains)),
        )


def _means(values: list[float], tasks: int) -> list[float]:
    """The mean of each task's values; the values if each is of another task."""
    if not 0 < tasks < len(values):
        return values
    known = [_done(values[task::tasks]) for task in range(tasks)]
    return [math.fsum(those) / len(those) for those in known if those]


def _judgement(observed: list[_Observed], *, compared: bool) -> Judgement:
    reward = mean_interval([value for part in observed for value in part.rewards])
    won = [value for part in observed for value in part.wins]
    win_rate = wilson_interval(math.fsum(won), len(won))
    if not compared:
        return Judgement(reward, win_rate)
    gains = [value for part in observed for value in part.gains]
    pairs = sum(part.pairs for part in observed)
    return Judgement(reward, win_rate, mean_interval(gains) if gains else None, pairs)


def figures(judgement: Judgement) -> dict[str, float]:
    """The figures of a judgement by name, each with its bounds as NAME_low and NAME_high. A figure, or a
    bound, that is not known is left out."""
    intervals = {"win_rate": judgement.win_rate, "mean_reward": judgement.reward, "gain": judgement.gain}
    if judgement.retention is not None:
        intervals["kept"] = judgement.retention.kept
    named: dict[str, float] = {}
    for name, interval in intervals.items():
        if interval is not None:
            named |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    if judgement.retention is not None:
        named["retained"] = float(judgement.retention.retained)
    return {name: value for name, value in named.items() if math.isfinite(value)}


def environment_figures(judgement: Judgement) -> dict[str, float]:
    """The figures of each environment of a mixture, named "environments.LABEL.FIGURE"."""
    return {
        f"environments.{label}.{name}": value
        for label, judged in judgement.environments.items()
        for name, value in figures(judged).items()
    }


def is_retained(evaluation: EvaluationRecord, first: EvaluationRecord) -> bool:
    """Returns whether a version has kept enough of every protected environment since the first evaluation."""
    return all(kept.retained for kept in retentions(evaluation, first).values())


class Judgements:
    """The judgements of a run's evaluations: each is made once, until it or its baseline changes.

    Everybody who looks at the run asks for all of them, and they may be of hundreds of thousands of episodes.
    """

    def __init__(self) -> None:
        # By name: what a judgement was made of, and what it is.
        self._kept: dict[str, tuple[tuple[bytes, bytes, bytes], Judgement]] = {}

    def judged(self, evaluations: Iterable[EvaluationRecord]) -> list[tuple[EvaluationRecord, Judgement]]:
        """Every evaluation with its figures, in the order of the run."""
        order = in_order(evaluations)
        firsts: dict[str, EvaluationRecord] = {}
        for record in order:
            firsts.setdefault(record.setting, record)
        kept, self._kept = self._kept, {}
        for record in order:
            before = _against(record, firsts[record.setting])
            data = (record.reward_data, record.win_data, before.reward_data if before is not None else b"")
            known = kept.get(record.name)
            if known is None or known[0] != data:
                known = (data, judge(record, before))
            self._kept[record.name] = known
        return [(record, self._kept[record.name][1]) for record in order]


def baseline(
    evaluation: EvaluationRecord, evaluations: Iterable[EvaluationRecord]
) -> EvaluationRecord | None:
    """Returns the evaluation to compare with: the run's first of its setting; None if it is that, or while
    that is not finished."""
    return _against(
        evaluation, next(record for record in in_order(evaluations) if record.setting == evaluation.setting)
    )


def _against(evaluation: EvaluationRecord, first: EvaluationRecord) -> EvaluationRecord | None:
    """`first` of the evaluation's setting, if the two can be compared."""
    return first if first.finished and first.name != evaluation.name else None


def in_order(evaluations: Iterable[EvaluationRecord]) -> list[EvaluationRecord]:
    """Evaluations from the run's first to its last: by version, the final one last."""
    return sorted(evaluations, key=lambda record: (record.version, record.name == FINAL, record.name))


def in_progress(evaluations: Iterable[EvaluationRecord], version: int) -> EvaluationRecord | None:
    """Returns the evaluation of the version until that has ended: until then it stays the newest."""
    return next((record for record in evaluations if record.version == version and not record.finished), None)


def best_version(evaluations: Iterable[EvaluationRecord]) -> int:
    """The version with the best mean reward among finished evaluations, the earlier of equals; 0: none.

    Compared are the instances that every finished evaluation met, so that one of fewer instances is
    not preferred for their being easy, and evaluations of the newest setting. An evaluation most of whose
    episodes failed proves too little. A version that has lost too much of a protected environment since the
    first of these evaluations is none; that first one has lost nothing.
    """
    ended = in_order(record for record in evaluations if record.finished)
    finished = [record for record in ended if 2 * record.done > record.episodes]
    finished = [record for record in finished if record.setting == finished[-1].setting]
    if finished:
        first = next(record for record in ended if record.setting == finished[-1].setting)
        finished = [record for record in finished if is_retained(record, first)]
    return _best(tuple((record.version, record.reward_data) for record in finished))


def kept_versions(evaluations: Iterable[EvaluationRecord]) -> list[int]:
    """Versions whose checkpoints must stay: the best one and those that are being evaluated."""
    every = list(evaluations)
    kept = {record.version for record in every if not record.finished} | {best_version(every)}
    return sorted(kept - {0})


def rewards(evaluation: EvaluationRecord) -> list[float]:
    """Rewards by index, NaN where no episode was done; empty before the first."""
    return _numbers(evaluation.reward_data, "d")


def wins(evaluation: EvaluationRecord) -> list[float]:
    """Wins (0..1) by index, as `rewards`."""
    return _numbers(evaluation.win_data, "f")


# --- within: of packed numbers --------------------------------------------------------------


@lru_cache(maxsize=16)
def _best(finished: tuple[tuple[int, bytes], ...]) -> int:
    """The version with the best mean over the instances that all of them have done; asked for at every batch,
    and counted when an evaluation ends."""
    rewards = [_numbers(data, "d") for _, data in finished]
    met = [index for index, row in enumerate(zip(*rewards, strict=False)) if not any(map(math.isnan, row))]
    best, best_mean = 0, -math.inf
    for (version, _), row in zip(finished, rewards, strict=True):
        mean = math.fsum(row[index] for index in met) / len(met) if met else 0.0
        if mean > best_mean:
            best, best_mean = version, mean
    return best


@lru_cache(maxsize=64)
def _retentions(
    before_data: bytes, after_data: bytes, tasks: tuple[int, ...], lowest: tuple[float, ...], loss: float
) -> tuple[Retention | None, ...]:
    """Each environment's retention, None for those that are not protected, whose lowest reward is NaN.

    tasks: as in EvaluationRecord. Asked for at every batch, as `_best` is.
    """
    before, after, parts = _numbers(before_data, "d"), _numbers(after_data, "d"), len(tasks)
    judged: list[Retention | None] = []
    for place in range(parts):
        if math.isnan(lowest[place]):
            judged.append(None)
            continue
        pairs = list(zip(before[place::parts], after[place::parts], strict=False))
        missing = (math.nan, math.nan)
        pairs = [missing if math.isnan(earlier + later) else (earlier, later) for earlier, later in pairs]
        count = sum(not math.isnan(earlier) for earlier, _ in pairs)
        means = [_done(_means(list(values), tasks[place])) for values in zip(*pairs, strict=True)]
        earlier, later = means or ([], [])
        enough = 2 * count > len(after[place::parts])
        judged.append(retention(earlier, later, lowest[place], loss, enough=enough))
    return tuple(judged)


def _numbers(data: bytes, form: str) -> list[float]:
    return [value for (value,) in struct.iter_unpack(f"<{form}", data)]


def _done(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]
