"""Line charts and a timeline as SVG text. Pure; colours come from the page's CSS (classes c0..c7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 38
COLOURS = 8
ROW_HEIGHT = 26
# Spans nearer to each other than this many pixels are drawn as one, paler the less of it was work.
JOIN_PIXELS = 0.7
PALEST = 0.15
# Width of a phase's name.
LABEL_PIXELS = 95
# Height of a band that is a strip.
FLOOR_PIXELS = 5


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or with `dots` one set of marks. points: (x, y), in order of x.

    bars: (x, low, high) of intervals around marks.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    dots: bool = False
    faint: bool = False
    bars: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True, slots=True)
class Band:
    """Something that held from `start` to `end` on the horizontal axis, named `name`.

    floor: a solid strip below the chart; otherwise a tint behind the whole chart.
    """

    name: str
    start: float
    end: float
    colour: int
    floor: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at x."""

    text: str
    x: float


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that span [low, high]."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / max(1, count - 1)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(magnitude * factor for factor in (1, 2, 2.5, 5, 10) if magnitude * factor >= raw * 0.999)
    first = math.floor(low / step + 1e-9) * step
    ticks = [first]
    while ticks[-1] < high - step * 1e-9:
        ticks.append(first + step * len(ticks))
    return ticks


def octaves(value: float) -> float:
    """Doublings above 1."""
    return math.log2(max(1.0, value))


def octave_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Whole numbers of doublings that span [low, high], about `count`."""
    first, last = math.floor(low), math.ceil(high)
    step = math.ceil(max(1, last - first) / (count - 1))
    return [float(tick) for tick in range(first, last + step, step)]


def tokens_label(value: float) -> str:
    """A power of two: 512, 4K."""
    return f"{value / 1024:g}K" if value >= 1024 else label(value)


def label(value: float) -> str:
    """A tick's text: 12k, 0.25, 3."""
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    if 0 < abs(value) < 0.001:
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")
    if value == int(value):
        return f"{int(value)}"
    return f"{value:.4f}".rstrip("0").rstrip(".")


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    percent: bool = False,
    y_range: tuple[float, float] | None = None,
    zero: bool = False,
    reach: Sequence[tuple[float, float]] = (),
    doubling: bool = False,
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
) -> str:
    """An SVG element; a note in place of it when no series has a point.

    zero: 0 is within the vertical axis, doubling: which is logarithmic, by powers of two, from 1 on.
    reach: (x, y) that are within the axes too; charts with the same have the same axes, if all of theirs lies
    between. Bands lie behind the series, marks across them.
    """
    drawn = [line for line in series if line.points]
    if not drawn:
        return '<p class="empty">nothing was recorded</p>'
    xs = [x for line in drawn for x, _ in (*line.points, *reach)]
    xs += [end for band in bands for end in (band.start, band.end)]
    ys = [y for line in drawn for _, y in (*line.points, *reach)]
    ys += [y for line in drawn for _, *ends in line.bars for y in ends] + [0.0] * zero
    height = octaves if doubling else float
    low, high = y_range or padded(height(min(ys)), height(max(ys)))
    x_ticks = nice_ticks(min(xs), max(xs), 7)
    y_ticks = octave_ticks(low, high) if doubling else nice_ticks(low, high)
    x_low, x_high = min(xs), max(*xs, min(xs) + 1e-9)
    y_low, y_high = y_ticks[0], max(y_ticks[-1], y_ticks[0] + 1e-9)

    def place(x: float, y: float) -> tuple[float, float]:
        right = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (height(y) - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return round(right, 1), round(min(max(down, TOP), HEIGHT - BOTTOM), 1)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    parts += [band_box(band, place(band.start, 1.0)[0], place(band.end, 1.0)[0]) for band in bands]
    for tick in y_ticks:
        value = 2.0**tick if doubling else tick
        _, y = place(x_low, value)
        text = f"{value:.0%}" if percent else tokens_label(value) if doubling else label(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{text}</text>')
    if y_low < 0 < y_high:
        _, y = place(x_low, 0.0)
        parts.append(f'<line class="zero" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
    for tick in x_ticks:
        if x_low <= tick <= x_high:
            x, _ = place(tick, 1.0)
            parts.append(text_at(x, HEIGHT - BOTTOM + 16, label(tick)))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="axis" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>'
    )
    parts += [draw(line, place, percent) for line in drawn]
    parts += [mark_line(mark, place(mark.x, 1.0)[0]) for mark in marks]
    parts.append("</svg>")
    entries = [(line.name, f"c{line.colour % COLOURS}{' faint' * line.faint}") for line in drawn]
    return "".join(parts) + legend(
        [*entries, *dict.fromkeys((band.name, f"c{band.colour}") for band in bands)]
    )


def text_at(x: float, y: float, text: str) -> str:
    """A small text centred at x."""
    return f'<text class="tick" x="{x}" y="{y}" text-anchor="middle">{escape(text)}</text>'


def padded(low: float, high: float) -> tuple[float, float]:
    """A range that leaves a flat line away from the frame."""
    if high > low:
        return low, high
    return low - (abs(low) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1


def draw(line: Series, place: Callable[[float, float], tuple[float, float]], percent: bool) -> str:
    colour = f"c{line.colour % COLOURS}"
    if line.dots:
        marks = [bar(place(x, low), place(x, high), colour) for x, low, high in line.bars]
        bounds = {x: (low, high) for x, low, high in line.bars}
        for x, y in line.points:
            right, down = place(x, y)
            text = " to ".join(
                f"{bound:.1%}" if percent else label(round(bound, 4)) for bound in bounds.get(x, ())
            )
            text = f"{line.name}: {f'{y:.1%}' if percent else label(round(y, 4))}{f' ({text})' * bool(text)}"
            title = f"<title>{escape(text)}</title>"
            marks.append(f'<circle class="{colour}" cx="{right}" cy="{down}" r="4.5">{title}</circle>')
        return "".join(marks)
    path = " ".join(f"{right},{down}" for right, down in (place(x, y) for x, y in line.points))
    faint = " faint" if line.faint else ""
    if len(line.points) == 1:
        right, down = place(*line.points[0])
        return f'<circle class="{colour}" cx="{right}" cy="{down}" r="3"/>'
    title = f"<title>{escape(line.name)}</title>"
    return f'<polyline class="line {colour}{faint}" points="{path}">{title}</polyline>'


def band_box(band: Band, left: float, right: float) -> str:
    """A tint over the chart's height, or a strip just under it."""
    bottom = HEIGHT - BOTTOM
    top, height, kind = (bottom, FLOOR_PIXELS, "floor") if band.floor else (TOP, bottom - TOP, "band")
    box = f'x="{left}" y="{top}" width="{max(0.6, right - left):.1f}" height="{height}"'
    return f'<rect class="{kind} c{band.colour}" {box}><title>{escape(band.name)}</title></rect>'


def mark_line(mark: Mark, x: float) -> str:
    """A dashed line with a handle that says what it is."""
    title = f"<title>{escape(mark.text)}</title>"
    line = f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    return f'<g>{title}{line}<path class="handle" d="M{x - 5:.1f} {TOP - 8}h10l-5 8z"/></g>'


def bar(low: tuple[float, float], high: tuple[float, float], colour: str) -> str:
    """An interval with its ends marked."""
    (x, bottom), (_, top) = low, high
    ends = "".join(f"M{x - 4:.1f} {y}h8" for y in (bottom, top))
    return f'<path class="line bar {colour}" d="M{x} {bottom}V{top}{ends}"/>'


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Names beside a patch of their CSS class; nothing for a single one, which the title names."""
    if len(entries) < 2:
        return ""
    items = (f'<span><i class="{colour}"></i>{escape(name)}</span>' for name, colour in entries)
    return f'<p class="legend">{"".join(items)}</p>'


def smooth(points: Sequence[tuple[float, float]], window: int) -> list[tuple[float, float]]:
    """Running mean of up to `window` values that end at each point."""
    out = []
    for index, (x, _) in enumerate(points):
        part = [y for _, y in points[max(0, index + 1 - window) : index + 1]]
        out.append((x, sum(part) / len(part)))
    return out


# --- timeline -------------------------------------------------------------------------------


def timeline(
    rows: Mapping[str, Sequence[tuple[str, float, float]]], phases: Sequence[tuple[str, float]], end_s: float
) -> str:
    """Who was busy when. rows: who → (what, start, end) in seconds of the run; phases: (name, start)."""
    if not rows or end_s <= 0:
        return '<p class="empty">nothing was recorded</p>'
    kinds = sorted({what for spans in rows.values() for what, _, _ in spans})
    colours = {what: index for index, what in enumerate(kinds)}
    width, left = 1150, 110
    height = 26 + ROW_HEIGHT * len(rows) + BOTTOM
    scale = (width - left - RIGHT) / end_s
    bottom = height - BOTTOM
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img">']
    parts += phase_marks(phases, lambda start_s: round(left + start_s * scale, 1), width - RIGHT, bottom)
    for tick in nice_ticks(0, end_s, 9):
        if tick <= end_s:
            x = round(left + tick * scale, 1)
            parts.append(
                f'<text class="tick" x="{x}" y="{bottom + 16}" text-anchor="middle">{label(tick)}</text>'
            )
    for index, (who, spans) in enumerate(rows.items()):
        top = 24 + index * ROW_HEIGHT
        parts.append(
            f'<text class="row" x="{left - 10}" y="{top + 15}" text-anchor="end">{escape(who)}</text>'
        )
        parts.append(
            f'<rect class="idle" x="{left}" y="{top + 3}" width="{width - left - RIGHT}" height="18"/>'
        )
        for what, start, end, busy in merged(spans, JOIN_PIXELS / scale):
            x, wide = left + start * scale, max(0.6, (end - start) * scale)
            colour = f"c{colours[what] % COLOURS}"
            share = f", busy {busy:.0%}" if busy < 0.995 else ""
            title = f"<title>{escape(what)}: {start:.2f} to {end:.2f} s{share}</title>"
            place = f'x="{x:.1f}" y="{top + 3}" width="{wide:.1f}" height="18"'
            if share:
                place += f' opacity="{max(PALEST, busy):.2f}"'
            parts.append(f'<rect class="{colour}" {place}>{title}</rect>')
    parts.append(
        f'<text class="axis" x="{width / 2}" y="{height - 4}" text-anchor="middle">seconds</text></svg>'
    )
    return "".join(parts) + legend([(what, f"c{colours[what] % COLOURS}") for what in kinds])


def phase_marks(
    phases: Sequence[tuple[str, float]], place: Callable[[float], float], right: float, bottom: float
) -> list[str]:
    """A line where each phase begins, and its name where there is room for it before the next one's."""
    parts = []
    starts = [place(start_s) for _, start_s in phases]
    for (name, _), x, after in zip(phases, starts, [*starts, right][1:], strict=True):
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="4" y2="{bottom}"/>')
        if after - x >= LABEL_PIXELS:
            parts.append(f'<text class="tick" x="{x + 4}" y="14">{escape(name)}</text>')
    return parts


def merged(spans: Sequence[tuple[str, float, float]], gap_s: float) -> list[tuple[str, float, float, float]]:
    """Spans of one kind whose gap could not be seen, joined, and the fraction of each that was not gap.

    Shorter ones last, so that they stay visible.
    """
    out: list[tuple[str, float, float]] = []
    gaps_s: list[float] = []
    latest: dict[str, int] = {}
    for what, start, end in sorted(spans, key=lambda span: span[1]):
        index = latest.get(what)
        if index is not None and start - out[index][2] <= gap_s:
            gaps_s[index] += max(0.0, start - out[index][2])
            out[index] = (what, out[index][1], max(end, out[index][2]))
        else:
            latest[what] = len(out)
            out.append((what, start, end))
            gaps_s.append(0.0)
    shares = [1.0 - gap / max(end - start, 1e-9) for (_, start, end), gap in zip(out, gaps_s, strict=True)]
    drawn = [(*span, share) for span, share in zip(out, shares, strict=True)]
    return sorted(drawn, key=lambda span: span[1] - span[2])
