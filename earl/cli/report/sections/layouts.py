"""Layouts of a stage over training steps, as text and as bands. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from earl.errors import IllegalParallelism
from earl.parallelism import Parallelism


def layout_text(degrees: Any) -> str:
    try:
        return str(Parallelism(**degrees))
    except (TypeError, IllegalParallelism):
        return ""


def bands(layouts: Sequence[tuple[float, str]]) -> list[dict[str, Any]]:
    """One band for each stretch of steps with the same layout. It ends where its last step ends."""
    shown = []
    for layout, run in groupby(layouts, key=lambda step_layout: step_layout[1]):
        steps = [step for step, _ in run]
        shown.append({"layout": layout, "start": steps[0], "end": steps[-1] + 1})
    return shown
