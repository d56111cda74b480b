"""The figures that decide between two runs, each as a function of what a run recorded. Pure.

None is what a run did not record; a ratio is there only where both sides are above 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from statistics import median

from earl.cli.lib.mixture_figures import by_environment
from earl.cli.report.curves import SMOOTHING_STEPS, TRAIN, smooth
from earl.cli.report.data import Record, RecordedRun, winners_in
from earl.cli.report.figure_text import clock, count, label, number, percent
from earl.config.paced_check import paced_text
from earl.parallelism import STAGES, Parallelism

DEGREES = ("dp", "tp", "cp", "pp")
# Keys of endings.jsonl: every episode is counted under one of these.
ENDINGS = ("ok", "truncated", "env_error", "infra_error", "timeout")
FAILURES = {
    "truncated": "ended TRUNCATED",
    "env_error": "ended ENV_ERROR",
    "infra_error": "ended INFRA_ERROR",
    "out_of_memory": "of these, engine out of memory",
    "timeout": "ended TIMEOUT",
}
# Parallelisms of one stage that are all named.
NAMED = 4


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """A number, with its 95 % interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


Value = MeasuredFigure | str | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the comparison. key: its name in JSON; shown: a number of it as text."""

    key: str
    title: str
    of: Callable[[RecordedRun], Value]
    shown: Callable[[float], str] = count

    def text(self, value: Value) -> str:
        """The value as text, for example "0.92 [0.9, 0.94]"; a dash for what was not recorded."""
        if not isinstance(value, MeasuredFigure):
            return value or "–"
        if value.low is None or value.high is None:
            return self.shown(value.value)
        return f"{self.shown(value.value)} [{self.shown(value.low)}, {self.shown(value.high)}]"


def ratio(value: Value, first: Value) -> float | None:
    """Returns how many times the first run's value this one is; None where there is no positive value."""
    if not isinstance(value, MeasuredFigure) or not isinstance(first, MeasuredFigure):
        return None
    return value.value / first.value if value.value > 0 and first.value > 0 else None


def result_word(runs: Sequence[RecordedRun]) -> str:
    """The word for what an episode gets: "reward", or "score" where no run's task has winners."""
    return "reward" if any(winners_in(run.metrics, run.evaluations) for run in runs) else "score"


def labels_in(runs: Sequence[RecordedRun]) -> list[str]:
    """The environments that the runs' mixtures have, in the order of the first run that has each."""
    labels: list[str] = []
    for run in runs:
        entries = run.config.mixture
        labels += [entry.label for entry in entries if len(entries) > 1]
        labels += [label for record in run.evaluations for label in by_environment(numbers_of(record))]
    return list(dict.fromkeys(labels))


def numbers_of(record: Record) -> dict[str, float]:
    """The numbers of a record, which is flat."""
    return {name: value for name, value in record.items() if isinstance(value, (int, float))}


def of_environments(labels: Sequence[str], result: str) -> Iterator[Figure]:
    """Each environment of a mixture: its last evaluation with the gain over the first, and its last steps."""
    for environment in labels:
        prefix = f"environments.{environment}."
        for key, title, shown in (
            ("mean_reward", result, number),
            ("win_rate", "win rate", percent),
            ("gain", "gain", signed),
        ):
            yield Figure(
                f"last_evaluation_{prefix}{key}",
                f"{environment}, last evaluation: {title}",
                partial(evaluated, which="last", key=f"{prefix}{key}"),
                shown,
            )
        for key, name, title, shown in (
            ("reward_mean", "reward_last", f"mean {result}", number),
            ("length_mean", "mean_tokens_last", "mean context", count),
            ("staleness_mean", "staleness_last", "mean staleness", number),
        ):
            yield Figure(
                f"{prefix}{name}",
                f"{environment}, last steps: {title}",
                partial(windowed, key=f"{prefix}{key}", part="last"),
                shown,
            )
        yield Figure(
            f"{prefix}truncated_trained",
            f"{environment}: truncated, yet trained on",
            partial(truncated_trained, key=f"{prefix}truncated_episodes"),
        )


def figures(result: str = "reward", labels: Sequence[str] = ()) -> Iterator[Figure]:
    """All figures of a comparison, in the order in which a reader asks for them. result: see result_word.

    labels: of the environments of mixtures.
    """
    yield Figure("outcome", "outcome", outcome)
    yield Figure("paced", "simulated times", lambda run: paced_text(run.config) or None)
    yield Figure("over_pace", "steps over pace", over_pace, percent)
    yield Figure("steps", "training steps", lambda run: MeasuredFigure(len(steps(run))))
    yield Figure("elapsed_s", "wall time", lambda run: MeasuredFigure(elapsed_s(run)), clock)
    yield Figure("step_s", "seconds a step, median", step_s, rounded)
    yield Figure("tokens_per_s", "trained on, tokens/s end to end", partial(per_second, key="tokens"))
    yield Figure(
        "generated_tokens_per_s",
        "of those generated, tokens/s",
        partial(per_second, key="trained_tokens"),
    )
    yield Figure(
        "engines_idle",
        "engines idle, last steps",
        partial(windowed, key="engines_idle_fraction", part="last"),
        percent,
    )
    yield Figure(
        "length_tail",
        "longest over mean length, last steps",
        partial(windowed, key="length_tail_ratio", part="last"),
        number,
    )
    accepted = partial(counted, part="accepted_tokens", whole="drafted_tokens")
    yield Figure("accepted_drafts", "of drafted tokens, accepted", accepted, percent)
    forwards = partial(counted, part="drafting_tokens", whole="drafting_steps")
    yield Figure("tokens_per_forward", "with drafts, tokens of a sequence a step", forwards, number)
    for part, title in (("first", "first steps"), ("last", "last steps"), ("best", "best steps")):
        yield Figure(
            f"reward_{part}",
            f"mean {result}, {title}",
            partial(windowed, key="reward_mean", part=part),
            number,
        )
    for which in ("first", "best", "last"):
        name = f"{which} evaluation"
        yield Figure(f"{which}_evaluation", name, partial(evaluation_name, which=which))
        for key, title, shown in (("mean_reward", result, number), ("win_rate", "win rate", percent)):
            yield Figure(
                f"{which}_evaluation_{key}",
                f"{name}: {title}",
                partial(evaluated, which=which, key=key),
                shown,
            )
    yield Figure(
        "gain", "gain, last over first evaluation", partial(evaluated, which="last", key="gain"), signed
    )
    yield from of_environments(labels, result)
    for part, title in (("first", "first steps"), ("last", "last steps")):
        yield Figure(
            f"mean_tokens_{part}", f"mean context, {title}", partial(windowed, key="length_mean", part=part)
        )
        yield Figure(f"max_tokens_{part}", f"longest context, {title}", partial(longest, part=part))
    yield Figure("max_tokens", "longest context of all", partial(longest, part="all"))
    yield Figure("episodes", "episodes that ended", partial(ended_episodes, names=ENDINGS))
    for name, title in FAILURES.items():
        yield Figure(f"episodes_{name}", title, partial(ended_episodes, names=(name,)))
    yield Figure("truncated_trained", "truncated, yet trained on", truncated_trained)
    yield Figure(
        "staleness_last",
        "mean staleness, last steps",
        partial(windowed, key="staleness_mean", part="last"),
        number,
    )
    for stage in STAGES:
        yield Figure(f"parallelism_{stage}", f"parallelism of {stage}", partial(parallelisms, stage=stage))
    for stage in STAGES:
        key = f"load.{stage}.memory_fraction"
        yield Figure(f"memory_{stage}", f"fullest device of {stage}", partial(most, key=key), percent)
    yield Figure("kv_used", "KV in use at most", partial(most, key="load.rollout.kv.used_fraction"), percent)
    yield Figure(
        "switches", "switches of parallelism", lambda run: MeasuredFigure(len(completed_switches(run)))
    )
    yield Figure(
        "switches_rolled_back",
        "rolled back",
        lambda run: MeasuredFigure(len(completed_switches(run, back=True))),
    )
    yield Figure(
        "stall_s", "stalled by switches, seconds", lambda run: MeasuredFigure(sum(stalls(run))), rounded
    )
    yield Figure(
        "stall_s_most",
        "longest stall, seconds",
        lambda run: MeasuredFigure(max(stalls(run), default=0.0)),
        rounded,
    )


# --- time and tokens ------------------------------------------------------------------------


def steps(run: RecordedRun) -> list[Record]:
    """Records of its training steps: not of the warm-up, nor of what was rolled back."""
    return [record for record in run.metrics if record.get("phase") == TRAIN]


def outcome(run: RecordedRun) -> Value:
    """Returns how its last launch ended, as far as is known."""
    if run.failure:
        return f"failed: {run.failure.get('error')}"
    final = any(record.get("name") == "final" for record in run.evaluations)
    return "complete" if final or len(steps(run)) >= run.config.scheduler.steps else "not complete"


def over_pace(run: RecordedRun) -> Value:
    """The fraction of steps on paced devices that took longer than they should."""
    return counted(run, part="late_steps", whole="paced_steps")


def counted(run: RecordedRun, part: str, whole: str) -> Value:
    """The fraction of what the run's processes have counted; None where they count nothing."""
    last = run.metrics[-1] if run.metrics else {}
    total = last.get(whole)
    return MeasuredFigure(float(last.get(part) or 0) / float(total)) if total else None


def elapsed_s(run: RecordedRun) -> float:
    """Seconds that the run was at work, from its start to the last thing that it recorded."""
    records = (*run.metrics, *run.evaluations, *run.endings)
    return max((float(record["time_s"]) for record in records if "time_s" in record), default=0.0)


def step_s(run: RecordedRun) -> Value:
    ends = [end_s for _, end_s in run.points("time_s", phase=TRAIN)]
    return (
        MeasuredFigure(median(after - before for before, after in pairwise(ends))) if len(ends) > 1 else None
    )


def per_second(run: RecordedRun, key: str) -> Value:
    """Tokens of the training steps, over all of the run's time: warm-up, evaluations and switches count."""
    values = [value for _, value in run.points(key, phase=TRAIN)]
    return MeasuredFigure(sum(values) / elapsed_s(run)) if values and elapsed_s(run) > 0 else None


# --- series ---------------------------------------------------------------------------------


def window(values: int) -> int:
    """Steps that one figure is over: as many as the report's running mean, at most half of all."""
    return min(SMOOTHING_STEPS, max(1, values // 2))


def windowed(run: RecordedRun, key: str, part: str) -> Value:
    """The running mean of a figure, where it is first whole, at the end, or at its highest."""
    points = run.points(key, phase=TRAIN)
    size = window(len(points))
    means = [value for _, value in smooth(points, size)][size - 1 :]
    if not means:
        return None
    return MeasuredFigure({"first": means[0], "last": means[-1], "best": max(means)}[part])


def longest(run: RecordedRun, part: str) -> Value:
    """Tokens of the longest episode that was trained on, of the first or last steps, or of all."""
    values = [value for _, value in run.points("length_max", phase=TRAIN)]
    size = window(len(values))
    chosen = {"first": values[:size], "last": values[-size:], "all": values}[part]
    return MeasuredFigure(max(chosen)) if chosen else None


def most(run: RecordedRun, key: str) -> Value:
    values = [value for _, value in run.points(key)]
    return MeasuredFigure(max(values)) if values else None


# --- evaluations ----------------------------------------------------------------------------


def evaluation(run: RecordedRun, which: str) -> Record | None:
    """The first, the last or the best (of the version that was kept, else of the highest reward)."""
    if not run.evaluations:
        return None
    if which != "best":
        return run.evaluations[0 if which == "first" else -1]
    kept = [record for record in run.evaluations if record.get("version") == run.result.get("best_version")]
    return max(kept or run.evaluations, key=mean_reward)


def mean_reward(record: Record) -> float:
    """The mean reward of a record's episodes; -inf if none has ended."""
    value = record.get("mean_reward")
    return value if isinstance(value, (int, float)) else -math.inf


def evaluation_name(run: RecordedRun, which: str) -> Value:
    record = evaluation(run, which)
    return f"{record.get('name')}, version {record.get('version')}" if record else None


def evaluated(run: RecordedRun, which: str, key: str) -> Value:
    record = evaluation(run, which) or {}
    value, low, high = (record.get(f"{key}{end}") for end in ("", "_low", "_high"))
    return MeasuredFigure(value, low, high) if isinstance(value, (int, float)) else None


# --- endings, parallelism and switches ------------------------------------------------------


def ended_episodes(run: RecordedRun, names: Sequence[str]) -> Value:
    """Episodes that ended so, those included that were tried again."""
    counts = [line.get(name, 0) for line in run.endings for name in names]
    return MeasuredFigure(sum(counts)) if counts else None


def truncated_trained(run: RecordedRun, key: str = "truncated_episodes") -> Value:
    values = [value for _, value in run.points(key, phase=TRAIN)]
    return MeasuredFigure(sum(values)) if values else None


def layouts(run: RecordedRun, stage: str) -> list[tuple[int, Parallelism]]:
    """(step, the stage's parallelism in that step) of each step that recorded it."""
    recorded = []
    for record in steps(run):
        degrees = {name: int(record.get(f"parallelism.{stage}.{name}") or 0) for name in DEGREES}
        if all(degrees.values()):
            recorded.append((int(record["step"]), Parallelism(**degrees)))
    return recorded


def parallelisms(run: RecordedRun, stage: str) -> Value:
    """The parallelisms of a stage, in the order in which it had them."""
    named = [str(degrees) for degrees, _ in groupby(degrees for _, degrees in layouts(run, stage))]
    if len(named) > NAMED:
        return f"{named[0]} → … → {named[-1]} ({len(named) - 1} changes)"
    return " → ".join(named) or None


def completed_switches(run: RecordedRun, *, back: bool = False) -> list[Record]:
    """The switches that ended in the requested parallelism, or those that were rolled back."""
    return [switch for switch in run.switches if bool(switch.get("rolled_back")) == back]


def stalls(run: RecordedRun) -> list[float]:
    return [float(switch.get("stall_s") or 0.0) for switch in run.switches]


def rounded(value: float) -> str:
    return label(round(value, 2))


def signed(value: float) -> str:
    return number(value, signed=True)
