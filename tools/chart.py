"""Charts as SVG text: the same values give the same bytes, and a picture asks nobody for a font or a script.

    values ─► ChartAxis: positions ─► Plot: grid, ticks, lines, dots ─► Chart.svg()

Lengths are in units of the picture, of which it is WIDTH wide. On a phone it is shown at about two thirds of
that, so no text is smaller than TEXT. The ground is painted in the reader's scheme, light or dark, so what is
around the picture does not matter. A mark's title holds its value, which a browser shows under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

WIDTH, MARGIN = 480, 16
TEXT, HEADING = 15, 18
# A line of text, and a dot's radius.
LINE, RADIUS = 21, 4.0
# By class, light and dark. Each reaches a contrast of 4.5 on its ground; blue, orange and green differ for
# readers who see no red or no green, and no chart tells by colour alone.
COLOURS = {
    "ground": ("#ffffff", "#0d1117"),
    "ink": ("#1d2330", "#e6e9ef"),
    "faint": ("#57606a", "#98a1b3"),
    "grid": ("#dfe3e8", "#2c3341"),
    "blue": ("#0067a5", "#58b4f0"),
    "orange": ("#b04a00", "#f0a04b"),
    "green": ("#00745a", "#35c9a0"),
}
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif'
ANCHORS = ("start", "middle", "end")


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """Values low to high, along the positions start to end; log: by their logarithms, all of them above 0."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def position(self, value: float) -> float:
        low, high, value = ((math.log2(each) if self.log else each) for each in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """Round values of a linear axis from `low` on, so many steps apart at most."""
        span = self.high - self.low
        power = 10.0 ** math.floor(math.log10(span / count))
        step = next(power * each for each in (1, 2, 5, 10) if span / (power * each) < count + 1)
        return [round(self.low + step * index, 9) for index in range(math.floor(span / step + 1e-9) + 1)]


@dataclass(slots=True)
class Chart:
    """A picture that is being drawn. description: what a reader who does not see it is told."""

    height: int
    heading: str
    description: str
    elements: list[str] = field(default_factory=list)

    def add(self, tag: str, title: str = "", text: str = "", **attributes: object) -> None:
        """Adds an element; `_` in an attribute's name stands for `-`, a number is rounded to a tenth."""
        inside = f"<title>{escape(title)}</title>" if title else ""
        shown = "".join(
            f" {name.rstrip('_').replace('_', '-')}={quoteattr(attribute(value))}"
            for name, value in attributes.items()
            if value != ""
        )
        self.elements.append(f"<{tag}{shown}>{inside}{escape(text)}</{tag}>")

    def words(
        self, x: float, y: float, text: str, style: str = "ink", anchor: str = "start", bold: bool = False
    ) -> None:
        """One line of text on the baseline y; anchor: of ANCHORS, where x is in it."""
        anchored = anchor if anchor != ANCHORS[0] else ""
        weight = "bold" if bold else ""
        self.add("text", text=text, class_=style, x=x, y=y, text_anchor=anchored, font_weight=weight)

    def lines(self, x: float, y: float, texts: Iterable[str], style: str = "ink", bold: bool = False) -> None:
        """Several lines of text, the first one on the baseline y."""
        for number, text in enumerate(texts):
            self.words(x, y + number * LINE, text, style, bold=bold)

    def notes(self, *texts: str) -> None:
        """Lines below the heading: what the marks are."""
        self.lines(MARGIN, 54, texts, "faint")

    def rule(self, x1: float, y1: float, x2: float, y2: float, style: str = "grid", dash: str = "") -> None:
        """A straight line that is no mark."""
        self.add(
            "line", class_=style, x1=x1, y1=y1, x2=x2, y2=y2, stroke="currentColor", stroke_dasharray=dash
        )

    def rectangle(
        self, x: float, y: float, width: float, height: float, style: str, title: str, opacity: float = 1.0
    ) -> None:
        shown = f"{opacity:.2f}" if opacity < 1 else ""
        self.add(
            "rect", title, class_=style, x=x, y=y, width=width, height=height, rx=2, fill="currentColor",
            fill_opacity=shown,
        )  # fmt: skip

    def dot(self, x: float, y: float, style: str, title: str, hollow: bool = False) -> None:
        ends = {"fill": "none", "stroke": "currentColor"} if hollow else {"fill": "currentColor"}
        self.add("circle", title, class_=style, cx=x, cy=y, r=RADIUS - hollow, **ends)

    def path(
        self, points: Sequence[tuple[float, float]], style: str, title: str, *, bold: bool, dash: str = ""
    ) -> None:
        """A line through points; bold, or thin and half transparent."""
        shown = " ".join(f"{attribute(x)},{attribute(y)}" for x, y in points)
        self.add(
            "polyline", title, class_=style, points=shown, fill="none", stroke="currentColor",
            stroke_width=2.5 if bold else 1.0, stroke_opacity="" if bold else "0.5", stroke_dasharray=dash,
        )  # fmt: skip

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
            f'height="{self.height}" role="img" font-size="{TEXT}">\n'
            f"<title>{escape(self.heading)}</title>\n<desc>{escape(self.description)}</desc>\n"
            f"<style>\n{style_sheet()}</style>\n"
            f'<rect class="ground" width="{WIDTH}" height="{self.height}" rx="8" fill="currentColor"/>\n'
            f'<text class="ink" x="{MARGIN}" y="{MARGIN + HEADING - 4}" font-size="{HEADING}" '
            f'font-weight="bold">{escape(self.heading)}</text>\n'
        )
        return head + "".join(f"{element}\n" for element in self.elements) + "</svg>\n"


@dataclass(frozen=True, slots=True)
class Plot:
    """The area of a chart that two axes span."""

    chart: Chart
    x: ChartAxis
    y: ChartAxis

    def point(self, x: float, y: float) -> tuple[float, float]:
        return self.x.position(x), self.y.position(y)

    def grid(self, ticks: Iterable[tuple[float, str]], label: str = "") -> None:
        """Horizontal lines at values of y, each with its text on the left; label: above all of them."""
        for value, text in ticks:
            y = self.y.position(value)
            self.chart.rule(self.x.start, y, self.x.end, y)
            self.chart.words(self.x.start - 8, y + 5, text, "faint", "end")
        if label:
            self.chart.words(MARGIN, self.y.end - 14, label, "ink")

    def ticks(self, ticks: Iterable[tuple[float, str]], label: str = "") -> None:
        """Texts below at values of x; label: below all of them."""
        for value, text in ticks:
            self.chart.words(self.x.position(value), self.y.start + 20, text, "faint", "middle")
        if label:
            middle = (self.x.start + self.x.end) / 2
            self.chart.words(middle, self.y.start + 20 + LINE, label, "faint", "middle")

    def line(
        self,
        values: Iterable[tuple[float, float]],
        style: str,
        title: str,
        *,
        bold: bool = True,
        dash: str = "",
    ) -> None:
        self.chart.path([self.point(*value) for value in values], style, title, bold=bold, dash=dash)

    def dot(self, x: float, y: float, style: str, title: str, hollow: bool = False) -> None:
        self.chart.dot(*self.point(x, y), style, title, hollow)


def attribute(value: object) -> str:
    """An attribute's text."""
    if isinstance(value, float):
        return f"{round(value, 1) + 0.0:g}"
    return str(value)


def style_sheet() -> str:
    """The colours of both schemes, and a ground behind letters that keeps lines out of them."""
    rules = [f"text {{ font-family: {FONT}; fill: currentColor; }}"]
    rules += [f".{name} {{ color: {light}; }}" for name, (light, _) in COLOURS.items()]
    rules.append("@media (prefers-color-scheme: dark) {")
    rules += [f"  .{name} {{ color: {dark}; }}" for name, (_, dark) in COLOURS.items()]
    return "".join(f"{rule}\n" for rule in (*rules, "}"))


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The positions, moved to be `gap` apart and within low to high, in their order.

    They are pushed up and pushed down, and stand in the middle of both.
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    upwards, downwards = list(positions), list(positions)
    for placed in (upwards, downwards):
        passes = [(order, low, 1), (order[::-1], high, -1)]
        for indices, bound, sign in passes if placed is upwards else reversed(passes):
            for index in indices:
                placed[index] = sign * max(sign * placed[index], sign * bound)
                bound = placed[index] + sign * gap
    return [(up + down) / 2 for up, down in zip(upwards, downwards, strict=True)]


def tokens_text(tokens: float) -> str:
    """46848 as "45.8K", where K is 1,024: up to three digits."""
    return f"{tokens / 1024:.3g}K" if tokens >= 1024 else f"{tokens:.0f}"


def bytes_text(size: float) -> str:
    """71303168 as "68 MiB": up to three digits."""
    units: Iterator[str] = iter(("KiB", "MiB", "GiB", "TiB"))
    unit = "B"
    while size >= 1024:
        size, unit = size / 1024, next(units)
    return f"{size:.3g} {unit}"
