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

from earl.cli.report.charts import label, smooth
from earl.cli.report.data import Record, RunRecord
from earl.cli.report.page import clock, count, number, percent
from earl.cli.report.panels import SMOOTHING_STEPS, TRAIN
from earl.parallelism import Parallelism

STAGES = ("rollout", "reference", "trainer")
DEGREES = ("dp", "tp", "cp", "pp")
# Keys of endings.jsonl: every episode is counted under one of these.
ENDINGS = ("ok", "truncated", "env_error", "infra_error", "timeout")
FAILURES = {
    "truncated": "ended TRUNCATED",
    "env_error": "ended ENV_ERROR",
    "infra_error": "ended INFRA_ERROR",
    "out_of_memory": "of these for an engine out of memory",
    "timeout": "ended TIMEOUT",
}
# Cuts of one stage that are named one by one.
NAMED = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """A number, with its 95 % interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


Value = Measured | str | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the comparison. key: its name in JSON; shown: a number of it as text."""

    key: str
    title: str
    of: Callable[[RunRecord], Value]
    shown: Callable[[float], str] = count

    def text(self, value: Value) -> str:
        """For example "0.92 [0.9, 0.94]"; a dash for what was not recorded."""
        if not isinstance(value, Measured):
            return value or "–"
        if value.low is None or value.high is None:
            return self.shown(value.value)
        return f"{self.shown(value.value)} [{self.shown(value.low)}, {self.shown(value.high)}]"


def ratio(value: Value, first: Value) -> float | None:
    """How many times the first run's."""
    if not isinstance(value, Measured) or not isinstance(first, Measured):
        return None
    return value.value / first.value if value.value > 0 and first.value > 0 else None


def figures() -> Iterator[Figure]:
    """All of them, in order of what a reader asks first."""
    yield Figure("outcome", "outcome", outcome)
    yield Figure("steps", "training steps", lambda run: Measured(len(steps(run))))
    yield Figure("elapsed_s", "wall time", lambda run: Measured(elapsed_s(run)), clock)
    yield Figure("step_s", "seconds a step, median", step_s, rounded)
    yield Figure("tokens_per_s", "trained on, tokens/s end to end", partial(per_second, key="tokens"))
    yield Figure(
        "generated_tokens_per_s",
        "of those generated, tokens/s",
        partial(per_second, key="trained_tokens"),
    )
    for at, title in (("first", "first steps"), ("last", "last steps"), ("best", "best steps")):
        yield Figure(
            f"reward_{at}", f"mean reward, {title}", partial(windowed, key="reward_mean", at=at), number
        )
    for which in ("first", "best", "last"):
        name = f"{which} evaluation"
        yield Figure(f"{which}_evaluation", name, partial(evaluation_name, which=which))
        for key, title, shown in (("mean_reward", "reward", number), ("win_rate", "win rate", percent)):
            yield Figure(
                f"{which}_evaluation_{key}",
                f"{name}: {title}",
                partial(evaluated, which=which, key=key),
                shown,
            )
    yield Figure(
        "gain", "gain, last over first evaluation", partial(evaluated, which="last", key="gain"), signed
    )
    for at, title in (("first", "first steps"), ("last", "last steps")):
        yield Figure(
            f"mean_tokens_{at}", f"mean context, {title}", partial(windowed, key="length_mean", at=at)
        )
        yield Figure(f"max_tokens_{at}", f"longest context, {title}", partial(longest, at=at))
    yield Figure("max_tokens", "longest context of all", partial(longest, at="all"))
    yield Figure("episodes", "episodes that ended", partial(ended, names=ENDINGS))
    for name, title in FAILURES.items():
        yield Figure(f"episodes_{name}", title, partial(ended, names=(name,)))
    yield Figure("truncated_trained", "trained on though truncated", truncated_trained)
    for stage in STAGES:
        yield Figure(f"parallelism_{stage}", f"parallelism of {stage}", partial(course, stage=stage))
    for stage in STAGES:
        key = f"load.{stage}.memory_fraction"
        yield Figure(f"memory_{stage}", f"fullest device of {stage}", partial(most, key=key), percent)
    yield Figure("kv_used", "KV in use at most", partial(most, key="load.rollout.kv.used_fraction"), percent)
    yield Figure("switches", "switches of parallelism", lambda run: Measured(len(switched(run))))
    yield Figure("switches_rolled_back", "rolled back", lambda run: Measured(len(switched(run, back=True))))
    yield Figure("stall_s", "stalled by switches, seconds", lambda run: Measured(sum(stalls(run))), rounded)
    yield Figure(
        "stall_s_most", "longest stall, seconds", lambda run: Measured(max(stalls(run), default=0.0)), rounded
    )


# --- time and tokens ------------------------------------------------------------------------


def steps(run: RunRecord) -> list[Record]:
    """Records of its training steps: not of the warm-up, nor of what was rolled back."""
    return [record for record in run.metrics if record.get("phase") == TRAIN]


def outcome(run: RunRecord) -> Value:
    """How its last launch ended, as far as is known."""
    if run.failure:
        return f"failed: {run.failure.get('error')}"
    final = any(one.get("name") == "final" for one in run.evaluations)
    return "complete" if final or len(steps(run)) >= run.config.scheduler.steps else "not complete"


def elapsed_s(run: RunRecord) -> float:
    """Seconds that the run was at work, from its start to the last thing that it recorded."""
    records = (*run.metrics, *run.evaluations, *run.endings)
    return max((float(record["time_s"]) for record in records if "time_s" in record), default=0.0)


def step_s(run: RunRecord) -> Value:
    ends = [end_s for _, end_s in run.points("time_s", phase=TRAIN)]
    return Measured(median(after - before for before, after in pairwise(ends))) if len(ends) > 1 else None


def per_second(run: RunRecord, key: str) -> Value:
    """Tokens of the training steps, over all of the run's time: warm-up, evaluations and switches count."""
    values = [value for _, value in run.points(key, phase=TRAIN)]
    return Measured(sum(values) / elapsed_s(run)) if values and elapsed_s(run) > 0 else None


# --- series ---------------------------------------------------------------------------------


def window(values: int) -> int:
    """Steps that one figure is over: as many as the report's running mean, at most half of all."""
    return min(SMOOTHING_STEPS, max(1, values // 2))


def windowed(run: RunRecord, key: str, at: str) -> Value:
    """The running mean of a figure, where it is first whole, at the end, or at its highest."""
    points = run.points(key, phase=TRAIN)
    size = window(len(points))
    means = [value for _, value in smooth(points, size)][size - 1 :]
    if not means:
        return None
    return Measured({"first": means[0], "last": means[-1], "best": max(means)}[at])


def longest(run: RunRecord, at: str) -> Value:
    """Tokens of the longest episode that was trained on, of the first or last steps, or of all."""
    values = [value for _, value in run.points("length_max", phase=TRAIN)]
    size = window(len(values))
    part = {"first": values[:size], "last": values[-size:], "all": values}[at]
    return Measured(max(part)) if part else None


def most(run: RunRecord, key: str) -> Value:
    values = [value for _, value in run.points(key)]
    return Measured(max(values)) if values else None


# --- evaluations ----------------------------------------------------------------------------


def evaluation(run: RunRecord, which: str) -> Record | None:
    """The first, the last or the best (of the version that was kept, else of the highest reward)."""
    if not run.evaluations:
        return None
    if which != "best":
        return run.evaluations[0 if which == "first" else -1]
    kept = [one for one in run.evaluations if one.get("version") == run.result.get("best_version")]
    return max(kept or run.evaluations, key=mean_reward)


def mean_reward(one: Record) -> float:
    """-inf where no episode of it was done."""
    value = one.get("mean_reward")
    return value if isinstance(value, (int, float)) else -math.inf


def evaluation_name(run: RunRecord, which: str) -> Value:
    found = evaluation(run, which)
    return f"{found.get('name')}, version {found.get('version')}" if found else None


def evaluated(run: RunRecord, which: str, key: str) -> Value:
    found = evaluation(run, which) or {}
    value, low, high = (found.get(f"{key}{end}") for end in ("", "_low", "_high"))
    return Measured(value, low, high) if isinstance(value, (int, float)) else None


# --- endings, parallelism and switches ------------------------------------------------------


def ended(run: RunRecord, names: Sequence[str]) -> Value:
    """Episodes that ended so, those included that were tried again."""
    counts = [line.get(name, 0) for line in run.endings for name in names]
    return Measured(sum(counts)) if counts else None


def truncated_trained(run: RunRecord) -> Value:
    values = [value for _, value in run.points("truncated_episodes", phase=TRAIN)]
    return Measured(sum(values)) if values else None


def cuts(run: RunRecord, stage: str) -> list[tuple[int, Parallelism]]:
    """(step, how the stage was cut in it), where that was recorded."""
    found = []
    for record in steps(run):
        degrees = {name: int(record.get(f"parallelism.{stage}.{name}") or 0) for name in DEGREES}
        if all(degrees.values()):
            found.append((int(record["step"]), Parallelism(**degrees)))
    return found


def course(run: RunRecord, stage: str) -> Value:
    """How a stage was cut, one after the other."""
    named = [str(cut) for cut, _ in groupby(cut for _, cut in cuts(run, stage))]
    if len(named) > NAMED:
        return f"{named[0]} → … → {named[-1]} ({len(named) - 1} changes)"
    return " → ".join(named) or None


def switched(run: RunRecord, *, back: bool = False) -> list[Record]:
    """Its switches that ended as asked, or those that were rolled back."""
    return [one for one in run.switches if bool(one.get("rolled_back")) == back]


def stalls(run: RunRecord) -> list[float]:
    return [float(one.get("stall_s") or 0.0) for one in run.switches]


def rounded(value: float) -> str:
    return label(round(value, 2))


def signed(value: float) -> str:
    return number(value, signed=True)
