"""What the selector would have had each stage run with, over the lengths that it saw. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby

from earl.cli.lib.decisions import Line, changes
from earl.cli.report.charts import Band, Mark, Series, line_chart
from earl.parallelism import Parallelism

# Changes that are listed under a chart; the last ones.
LISTED = 12
# The lines have colours 0, 2 and 3.
TINTS = (1, 4, 6, 5, 7)
LENGTHS = (("longest", "max_tokens", 3), ("95th percentile", "p95_tokens", 2), ("mean", "mean_tokens", 0))


def layouts_chart(lines: Sequence[Line], *, x_label: str) -> str:
    """Lengths of one stage's steps, the layout of each step as a band, and where verdicts changed.

    The tint is what the selector chose for a step, the strip at the bottom what the step ran with.
    """
    series = [
        Series(name, [(line.step - 1.0, getattr(line.seen, key)) for line in lines], colour)
        for name, key, colour in LENGTHS
    ]
    every = [*(line.running for line in lines), *(line.verdict.after for line in lines)]
    tints = tints_of(every)
    # A decision is for the step after the one that it saw, which ran as it says.
    chosen = bands([(line.step, line.verdict.after) for line in lines], tints, floor=False)
    ran = bands([(line.step - 1, line.running) for line in lines], tints, floor=True)
    changed = changes(lines)
    marks = [Mark(f"step {line.step}: {line.verdict.reason}", float(line.step)) for line in changed]
    chart = line_chart(series, x_label=x_label, doubling=True, bands=[*chosen, *ran], marks=marks)
    return chart + listed(changed)


def tints_of(layouts: Iterable[Parallelism]) -> dict[Parallelism, int]:
    """A colour for each layout, in order of their first appearance."""
    return {layout: TINTS[place % len(TINTS)] for place, layout in enumerate(dict.fromkeys(layouts))}


def bands(
    layouts: Sequence[tuple[int, Parallelism]], tints: Mapping[Parallelism, int], *, floor: bool
) -> list[Band]:
    """One a stretch of steps with the same layout, up to the step after its last one."""
    out = []
    for layout, run in groupby(layouts, key=lambda step_layout: step_layout[1]):
        steps = [step for step, _ in run]
        out.append(Band(str(layout), float(steps[0]), float(steps[-1] + 1), tints[layout], floor))
    return out


def listed(changed: Sequence[Line]) -> str:
    """The changes in words."""
    items = [f"<li><b>step {line.step}</b> {escape(line.verdict.reason)}</li>" for line in changed[-LISTED:]]
    if len(changed) > LISTED:
        items.append(f"<li>and {len(changed) - LISTED} before these: earl explain lists them all</li>")
    return f'<ul class="changes">{"".join(items)}</ul>' if items else ""
