"""Runs' charts side by side: a row a figure, a cell a run, all cells of a row on the same axes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from earl.cli.compare.figures import ENDINGS, FAILURES, STAGES, cuts, steps
from earl.cli.report.charts import Band, Mark, Series, line_chart, smooth
from earl.cli.report.data import RunRecord
from earl.cli.report.layouts import bands, tints_of
from earl.cli.report.panels import SMOOTHING_STEPS, STEP, TRAIN, card, evaluated

SECONDS = "seconds"
# As in the report's throughput.
SMOOTHING_RATE = 3
LENGTHS = (
    ("longest", "length_max", 3),
    ("95th percentile", "episode_tokens.p95", 2),
    ("mean", "length_mean", 0),
)
COLOURS = {"truncated": 3, "env_error": 2, "infra_error": 7, "timeout": 5, "out_of_memory": 4}


@dataclass(frozen=True, slots=True)
class Plot:
    """What one cell shows."""

    series: Sequence[Series]
    bands: Sequence[Band] = ()
    marks: Sequence[Mark] = ()

    @property
    def corners(self) -> list[tuple[float, float]]:
        """Two points between which all of it lies; none if there is nothing."""
        points = [point for line in self.series for point in line.points]
        points += [(x, y) for line in self.series for x, *ends in line.bars for y in ends]
        if not points:
            return []
        xs = [x for x, _ in points] + [end for band in self.bands for end in (band.start, band.end)]
        ys = [y for _, y in points]
        return [(min(xs), min(ys)), (max(xs), max(ys))]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of all runs; how: further arguments of its charts."""

    title: str
    note: str
    x_label: str
    plots: Sequence[Plot]
    how: Mapping[str, Any] = field(default_factory=dict)


def side_by_side(row: Row, names: Sequence[str]) -> str:
    """A card; empty if no run recorded anything of it."""
    reach = within([corner for plot in row.plots for corner in plot.corners], row.x_label)
    if not reach:
        return ""
    cells = (
        f'<div><p class="note"><b>{escape(name)}</b></p>'
        + line_chart(
            plot.series, x_label=row.x_label, reach=reach, bands=plot.bands, marks=plot.marks, **row.how
        )
        + "</div>"
        for name, plot in zip(names, row.plots, strict=True)
    )
    return card(row.title, f'<div class="charts">{"".join(cells)}</div>', wide=True, note=row.note)


def within(points: Sequence[tuple[float, float]], x_label: str) -> list[tuple[float, float]]:
    """What the axes of a row reach: its points, and for an axis of time the run's start."""
    return [*points, *((0.0, y) for _, y in points[:1] if x_label == SECONDS)]


def together(runs: Sequence[RunRecord], names: Sequence[str]) -> Iterator[str]:
    """Cards of one chart for all runs: a line a run."""
    for title, key, over, window, x_label in (
        ("Reward over time", "reward_mean", "time_s", SMOOTHING_STEPS, SECONDS),
        ("Reward over steps", "reward_mean", "step", SMOOTHING_STEPS, STEP),
        ("Tokens/s over time", "tokens_per_s", "time_s", SMOOTHING_RATE, SECONDS),
        ("Mean context over time", "length_mean", "time_s", SMOOTHING_RATE, SECONDS),
    ):
        lines = [
            Series(name, smooth(run.points(key, phase=TRAIN, over=over), window), at)
            for at, (run, name) in enumerate(zip(runs, names, strict=True))
        ]
        reach = within([point for line in lines for point in line.points], x_label)
        yield card(
            title, line_chart(lines, x_label=x_label, reach=reach), note=f"Mean of up to {window} steps."
        )


def rows(runs: Sequence[RunRecord]) -> Iterator[Row]:
    """In order of what a reader asks first."""
    yield from (lengths(runs, stage) for stage in STAGES if stage == "rollout" or changed(runs, stage))
    yield Row("Reward", "Of the batches, and of evaluations with their 95 % intervals.", STEP,
              [reward(run) for run in runs])  # fmt: skip
    yield Row("Throughput", "Tokens of the trained episodes a second.", SECONDS,
              [throughput(run) for run in runs], {"zero": True})  # fmt: skip
    yield Row("Memory", "Of the fullest device of a stage, and the KV in use, at the highest of each step.",
              SECONDS, [memory(run) for run in runs], {"zero": True, "percent": True})  # fmt: skip
    names = [name for name in FAILURES if any(line.get(name) for run in runs for line in run.endings)]
    yield Row(
        "Episodes that were cut short or failed",
        "Share of those that ended in some seconds, those included that were tried again; out of memory: "
        "their engine was lost to it, which is an infra error.",
        SECONDS,
        [endings(run, names or ["truncated"]) for run in runs],
        {"zero": True, "percent": True},
    )


def changed(runs: Sequence[RunRecord], stage: str) -> bool:
    """Whether the stage was cut in more than one way, in one run or between them."""
    return len({cut for run in runs for _, cut in cuts(run, stage)}) > 1


def lengths(runs: Sequence[RunRecord], stage: str) -> Row:
    tints = tints_of(cut for run in runs for _, cut in cuts(run, stage))
    note = f"Tokens of what each step trained on. Tint: how {stage} was cut; lines: switches of it."
    plots = []
    for run in runs:
        series = [Series(name, run.points(key, phase=TRAIN), colour) for name, key, colour in LENGTHS]
        layouts = bands(cuts(run, stage), tints, floor=False)
        plots.append(Plot(series, layouts, switches(run, stage)))
    return Row(f"Context and parallelism of {stage}", note, STEP, plots, {"doubling": True})


def switches(run: RunRecord, stage: str) -> list[Mark]:
    """Where a stage was switched, or could not be: in the step that went on then, or after the last."""
    ends = [(int(record["step"]), float(record.get("time_s", 0.0))) for record in steps(run)]
    marks = []
    for one in run.switches:
        if one.get("stage") != stage:
            continue
        at = next((step for step, end_s in ends if end_s >= one["time_s"]), ends[-1][0])
        how = f"rolled back: {one.get('message')}" if one.get("rolled_back") else str(one.get("reason", ""))
        marks.append(Mark(f"step {at}: {how}; stalled {float(one.get('stall_s') or 0.0):.2f} s", float(at)))
    return marks


def reward(run: RunRecord) -> Plot:
    rewards = run.points("reward_mean", phase=TRAIN)
    return Plot(
        [
            Series("mean of the batch", rewards, 1, faint=True),
            Series(f"mean of {SMOOTHING_STEPS} steps", smooth(rewards, SMOOTHING_STEPS), 1),
            evaluated(run, "evaluation", "mean_reward"),
        ]
    )


def throughput(run: RunRecord) -> Plot:
    rates = run.points("tokens_per_s", phase=TRAIN, over="time_s")
    return Plot([Series("tokens/s", smooth(rates, SMOOTHING_RATE), 4)])


def memory(run: RunRecord) -> Plot:
    shown = [
        *((stage, f"load.{stage}.memory_fraction", at) for at, stage in enumerate(STAGES)),
        ("KV in use", "load.rollout.kv.used_fraction", 4),
    ]
    return Plot([Series(name, run.points(key, over="time_s"), colour) for name, key, colour in shown])


def endings(run: RunRecord, names: Sequence[str]) -> Plot:
    """names: keys of endings.jsonl."""
    totals = [(line, sum(line.get(name, 0) for name in ENDINGS)) for line in run.endings]
    return Plot(
        [
            Series(
                name.replace("_", " "),
                [(float(line["time_s"]), line.get(name, 0) / total) for line, total in totals if total],
                COLOURS[name],
            )
            for name in names
        ]
    )
