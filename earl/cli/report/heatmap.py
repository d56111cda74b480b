"""A heat map of lengths over steps as SVG text. Pure; the page's CSS colours the levels h1..h8."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from earl.cli.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    label,
    nice_ticks,
    text_at,
    tokens_label,
)

COLUMNS = 96
LEVELS = 8
# A map of nearly equal lengths still spans so many bins.
LEAST_BINS = 8


@dataclass(frozen=True, slots=True)
class Column:
    """What steps `first` to `last` trained on: bin → trajectories; tokens: sum over all of them."""

    first: int
    last: int
    counts: Mapping[int, int]
    tokens: float

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def columns(records: Sequence[Mapping[str, object]]) -> tuple[list[Column], int]:
    """At most COLUMNS columns of metrics records that have a histogram, and its bins per octave."""
    steps = []
    per_octave = 0
    for record in records:
        counts, first = record.get("length_histogram.counts"), record.get("length_histogram.first")
        width, mean = record.get("length_histogram.per_octave"), record.get("length_mean")
        if isinstance(counts, list) and isinstance(first, int) and isinstance(width, int) and counts:
            step = int(str(record["step"]))
            bins = {first + place: int(count) for place, count in enumerate(counts) if count}
            tokens = float(mean) * sum(bins.values()) if isinstance(mean, (int, float)) else math.nan
            steps.append(Column(step, step, bins, tokens))
            per_octave = width
    size = math.ceil(len(steps) / COLUMNS) or 1
    return [joined(steps[start : start + size]) for start in range(0, len(steps), size)], per_octave


def joined(steps: Sequence[Column]) -> Column:
    """Several steps as one column."""
    counts: dict[int, int] = {}
    for step in steps:
        for bin_number, count in step.counts.items():
            counts[bin_number] = counts.get(bin_number, 0) + count
    return Column(steps[0].first, steps[-1].last, counts, sum(step.tokens for step in steps))


@dataclass(frozen=True, slots=True)
class Frame:
    """Where columns and bins lie. low, high: bins at both ends; wide, tall: pixels of a cell."""

    low: int
    high: int
    per_octave: int
    wide: float
    tall: float

    @classmethod
    def around(cls, drawn: Sequence[Column], per_octave: int) -> Frame:
        low = min(min(column.counts) for column in drawn)
        high = max(max(column.counts) for column in drawn) + 1
        spare = max(0, LEAST_BINS - (high - low))
        low, high = low - spare // 2, high + spare - spare // 2
        wide, tall = (WIDTH - LEFT - RIGHT) / len(drawn), (HEIGHT - TOP - BOTTOM) / (high - low)
        return cls(low, high, per_octave, wide, tall)

    def right(self, place: float) -> float:
        return round(LEFT + place * self.wide, 1)

    def down(self, bin_at: float) -> float:
        return round(HEIGHT - BOTTOM - (bin_at - self.low) * self.tall, 1)

    def bin_of(self, tokens: float) -> float:
        return self.per_octave * math.log2(max(1.0, tokens))


def heat_map(drawn: Sequence[Column], per_octave: int, *, x_label: str) -> str:
    """An SVG element: a column per step or few, a row per bin, darker where more trajectories ended."""
    frame = Frame.around(drawn, per_octave)
    most = max(count / column.total for column in drawn for count in column.counts.values())
    middle = (LEFT + WIDTH - RIGHT) / 2
    mean = mean_line(drawn, frame)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        *cells(drawn, frame, most),
        *length_axis(frame),
        *step_ticks(drawn, frame),
        mean,
        *tips(drawn, frame),
        f'<text class="axis" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>',
        "</svg>",
    ]
    return "".join(parts) + scale(most, bool(mean))


def cells(drawn: Sequence[Column], frame: Frame, most: float) -> list[str]:
    """One path per level, with a box for every bin of every column that reaches it."""
    paths: dict[int, list[str]] = {}
    for place, column in enumerate(drawn):
        left, right = frame.right(place), frame.right(place + 1)
        for bin_number, count in column.counts.items():
            level = max(1, math.ceil(LEVELS * math.sqrt(count / column.total / most)))
            box = f"M{left} {frame.down(bin_number + 1)}H{right}V{frame.down(bin_number)}H{left}z"
            paths.setdefault(level, []).append(box)
    return [f'<path class="h{level}" d="{"".join(paths[level])}"/>' for level in sorted(paths)]


def mean_line(drawn: Sequence[Column], frame: Frame) -> str:
    """The mean length of each column; empty if fewer than two are known."""
    points = [
        f"{frame.right(place + 0.5)},{frame.down(frame.bin_of(column.tokens / column.total))}"
        for place, column in enumerate(drawn)
        if math.isfinite(column.tokens)
    ]
    if len(points) < 2:
        return ""
    return f'<polyline class="line mean" points="{" ".join(points)}"><title>mean</title></polyline>'


def tips(drawn: Sequence[Column], frame: Frame) -> list[str]:
    """What a pointer over a column reads."""
    return [
        f'<rect class="clear" x="{frame.right(place)}" y="{TOP}" width="{frame.wide:.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM}"><title>{escape(summary(column, frame.per_octave))}</title></rect>'
        for place, column in enumerate(drawn)
    ]


def length_axis(frame: Frame) -> list[str]:
    parts = []
    for tokens in length_ticks(2 ** (frame.low / frame.per_octave), 2 ** (frame.high / frame.per_octave)):
        y = frame.down(frame.bin_of(tokens))
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        text = tokens_label(tokens) if tokens % 1024 == 0 else label(tokens)
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{text}</text>')
    return parts


def step_ticks(drawn: Sequence[Column], frame: Frame) -> list[str]:
    """Numbers of some of the steps, under the middle of their columns."""
    ticks = nice_ticks(drawn[0].first, drawn[-1].last, 7)
    parts = []
    for place, column in enumerate(drawn):
        inside = [tick for tick in ticks if column.first <= tick <= column.last]
        if inside:
            parts.append(text_at(frame.right(place + 0.5), HEIGHT - BOTTOM + 16, label(inside[0])))
    return parts


def length_ticks(low: float, high: float) -> list[int]:
    """Powers of two in [low, high], or as many round numbers where those would be too few."""
    powers = [1 << power for power in range(64) if low <= 1 << power <= high]
    if len(powers) < 3:
        return [int(tick) for tick in nice_ticks(low, high, 4) if low <= tick <= high and tick >= 1]
    return powers[:: math.ceil(len(powers) / 8)]


def summary(column: Column, per_octave: int) -> str:
    steps = f"step {column.first}"
    if column.first < column.last:
        steps = f"steps {column.first} to {column.last}"
    low, high = (2 ** (edge / per_octave) for edge in (min(column.counts), max(column.counts) + 1))
    mean = f", mean {column.tokens / column.total:.0f}" if math.isfinite(column.tokens) else ""
    return f"{steps}: {column.total} trajectories of {math.ceil(low)} to {math.ceil(high) - 1} tokens{mean}"


def scale(most: float, with_mean: bool) -> str:
    """What the levels mean."""
    boxes = "".join(f'<i class="h{level}"></i>' for level in range(1, LEVELS + 1))
    mean = '<span><i class="stroke"></i>mean</span>' if with_mean else ""
    return (
        f'<p class="legend levels"><span>share of a step\'s trajectories: up to {most / LEVELS**2:.1%} '
        f"{boxes} {most:.0%}</span>{mean}</p>"
    )
