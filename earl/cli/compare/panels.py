"""Runs' charts side by side: a row a figure, a cell a run, all cells of a row on the same axes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from earl.cli.compare.figures import ENDINGS, FAILURES, STAGES, layouts, result_word, steps
from earl.cli.report.curves import SMOOTHING_STEPS, STEP, TRAIN, smooth
from earl.cli.report.data import Record, RecordedRun
from earl.cli.report.sections.layouts import bands
from earl.cli.report.sections.series import thinned

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
class Series:
    """One line, or with `dots` one set of marks. points: (x, y), in order of x; bounds: (x, low, high)."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    dots: bool = False
    faint: bool = False
    bounds: Sequence[tuple[float, float, float]] = ()

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "points": thinned(self.points)}


@dataclass(frozen=True, slots=True)
class ChartCell:
    """The contents of one cell: the chart of one figure of one run.

    bands: layouts as in sections.layouts; marks: (x, what happened there).
    """

    series: Sequence[Series]
    bands: Sequence[Mapping[str, Any]] = ()
    marks: Sequence[tuple[float, str]] = ()

    @property
    def corners(self) -> list[tuple[float, float]]:
        """Two points between which all of it lies; none if there is nothing."""
        points = [point for line in self.series for point in line.points]
        points += [(x, y) for line in self.series for x, *ends in line.bounds for y in ends]
        if not points:
            return []
        xs = [x for x, _ in points] + [end for band in self.bands for end in (band["start"], band["end"])]
        ys = [y for _, y in points]
        return [(min(xs), min(ys)), (max(xs), max(ys))]


@dataclass(frozen=True, slots=True)
class ChartRow:
    """One figure of all runs. layouts: in the order of their colours; zero: 0 is on the vertical axis."""

    title: str
    note: str
    x_label: str
    plots: Sequence[ChartCell]
    layouts: Sequence[str] = ()
    zero: bool = False
    percent: bool = False
    doubling: bool = False


def side_by_side(row: ChartRow, names: Sequence[str]) -> dict[str, Any] | None:
    """The row as the page draws it; None if no run recorded anything of it.

    reach, within: what the horizontal and the vertical axis of every cell reach.
    """
    corners = [corner for plot in row.plots for corner in plot.corners]
    if not corners:
        return None
    xs, ys = [x for x, _ in corners], [y for _, y in corners]
    return {
        "title": row.title, "note": row.note, "x": row.x_label, "layouts": row.layouts,
        "percent": row.percent, "log": 2 if row.doubling else 0, "zero": row.zero,
        "reach": time_axis_ends(xs, row.x_label), "within": [min(ys), max(ys)],
        "cells": [
            {
                "name": name,
                "series": [line.as_json() for line in plot.series],
                "bands": plot.bands,
                "marks": [{"x": x, "lines": [text]} for x, text in plot.marks],
            }
            for name, plot in zip(names, row.plots, strict=True)
        ],
    }  # fmt: skip


def time_axis_ends(xs: Sequence[float], x_label: str) -> list[float] | None:
    """The ends of a horizontal axis, for one of time from the run's start on; None if there is no point."""
    return [0.0 if x_label == SECONDS else min(xs), max(xs)] if xs else None


def together(runs: Sequence[RecordedRun], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Charts of all runs: a line a run."""
    result = result_word(runs).capitalize()
    for title, key, over, window, x_label in (
        (f"{result} over time", "reward_mean", "time_s", SMOOTHING_STEPS, SECONDS),
        (f"{result} over steps", "reward_mean", "step", SMOOTHING_STEPS, STEP),
        ("Tokens/s over time", "tokens_per_s", "time_s", SMOOTHING_RATE, SECONDS),
        ("Mean context over time", "length_mean", "time_s", SMOOTHING_RATE, SECONDS),
    ):
        lines = [
            Series(name, smooth(run.points(key, phase=TRAIN, over=over), window), index)
            for index, (run, name) in enumerate(zip(runs, names, strict=True))
        ]
        yield {
            "title": title, "note": f"Mean of up to {window} steps.", "x": x_label,
            "reach": time_axis_ends([x for line in lines for x, _ in line.points], x_label),
            "series": [line.as_json() for line in lines],
        }  # fmt: skip


def rows(runs: Sequence[RecordedRun]) -> Iterator[ChartRow]:
    """All rows of the page, in the order in which a reader asks for them."""
    yield from (lengths(runs, stage) for stage in STAGES if stage == "rollout" or has_changed(runs, stage))
    note = f"{result_word(runs).capitalize()}s of the batches, and of evaluations with their 95 % intervals."
    yield ChartRow(result_word(runs).capitalize(), note, STEP, [reward(run) for run in runs])
    note = "Tokens of the trained episodes a second."
    yield ChartRow("Throughput", note, SECONDS, [throughput(run) for run in runs], zero=True)
    note = "Memory of a stage's fullest device, and the KV in use, each at its highest in the step."
    yield ChartRow("Memory", note, SECONDS, [memory(run) for run in runs], zero=True, percent=True)
    names = [name for name in FAILURES if any(line.get(name) for run in runs for line in run.endings)]
    yield ChartRow(
        "Truncated and failed episodes",
        "Share of those that ended in some seconds, those included that were tried again; out of memory: "
        "their engine was lost to it, which is an infra error.",
        SECONDS,
        [endings(run, names or ["truncated"]) for run in runs],
        zero=True,
        percent=True,
    )


def has_changed(runs: Sequence[RecordedRun], stage: str) -> bool:
    """Returns whether the stage had more than one parallelism, in one run or between them."""
    return len({degrees for run in runs for _, degrees in layouts(run, stage)}) > 1


def lengths(runs: Sequence[RecordedRun], stage: str) -> ChartRow:
    known = dict.fromkeys(str(degrees) for run in runs for _, degrees in layouts(run, stage))
    note = f"Tokens of what each step trained on. Tint: parallelism of {stage}; marks: its switches."
    plots = []
    for run in runs:
        series = [Series(name, run.points(key, phase=TRAIN), colour) for name, key, colour in LENGTHS]
        tinted = bands([(step, str(degrees)) for step, degrees in layouts(run, stage)])
        plots.append(ChartCell(series, tinted, switches(run, stage)))
    title = f"Context and parallelism of {stage}"
    return ChartRow(title, note, STEP, plots, list(known), doubling=True)


def switches(run: RecordedRun, stage: str) -> list[tuple[float, str]]:
    """Returns where a stage was switched, or could not be: in the step in progress, or after the last."""
    ends = [(int(record["step"]), float(record.get("time_s", 0.0))) for record in steps(run)]
    marks = []
    for switch in run.switches:
        if switch.get("stage") != stage:
            continue
        during = next((step for step, end_s in ends if end_s >= switch["time_s"]), ends[-1][0])
        how = (
            f"rolled back: {switch.get('message')}"
            if switch.get("rolled_back")
            else str(switch.get("reason", ""))
        )
        stalled = float(switch.get("stall_s") or 0.0)
        marks.append((float(during), f"step {during}: {how}; stalled {stalled:.2f} s"))
    return marks


def reward(run: RecordedRun) -> ChartCell:
    """The batches, their running mean, and the evaluations with their intervals."""
    points = run.points("reward_mean", phase=TRAIN)
    judged = [
        (step_of(run, record), [record.get(f"mean_reward{end}") for end in ("", "_low", "_high")])
        for record in run.evaluations
        if isinstance(record.get("mean_reward"), (int, float))
    ]
    return ChartCell(
        [
            Series("mean of the batch", points, 1, faint=True),
            Series(f"mean of {SMOOTHING_STEPS} steps", smooth(points, SMOOTHING_STEPS), 1),
            Series(
                "evaluation",
                [(step, float(value or 0.0)) for step, (value, _, _) in judged],
                2,
                dots=True,
                bounds=[
                    (step, low, high)
                    for step, (_, low, high) in judged
                    if low is not None and high is not None
                ],
            ),
        ]
    )


def step_of(run: RecordedRun, evaluation: Record) -> float:
    """Training steps in the parameters that were evaluated: every step makes one version."""
    return float(max(0, int(evaluation.get("version", 1)) - 1 - run.config.warmup.batches))


def throughput(run: RecordedRun) -> ChartCell:
    rates = run.points("tokens_per_s", phase=TRAIN, over="time_s")
    return ChartCell([Series("tokens/s", smooth(rates, SMOOTHING_RATE), 4)])


def memory(run: RecordedRun) -> ChartCell:
    shown = [
        *((stage, f"load.{stage}.memory_fraction", colour) for colour, stage in enumerate(STAGES)),
        ("KV in use", "load.rollout.kv.used_fraction", 4),
    ]
    return ChartCell([Series(name, run.points(key, over="time_s"), colour) for name, key, colour in shown])


def endings(run: RecordedRun, names: Sequence[str]) -> ChartCell:
    """The share of episodes with each of these endings over time. names: keys of endings.jsonl."""
    totals = [(line, sum(line.get(name, 0) for name in ENDINGS)) for line in run.endings]
    return ChartCell(
        [
            Series(
                name.replace("_", " "),
                [(float(line["time_s"]), line.get(name, 0) / total) for line, total in totals if total],
                COLOURS[name],
            )
            for name in names
        ]
    )
