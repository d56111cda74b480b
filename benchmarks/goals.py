"""Goals of a benchmark's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def missed_goals(figures: Mapping[str, Any], goals: Mapping[str, float]) -> list[str]:
    """Names of the goals that the figures do not meet; one without a figure is missed.

    Figures are to be at least their goal, those whose name ends in _max at most.
    """
    names: list[str] = []
    for name, goal in goals.items():
        value = figures[name]
        if value is None or (value > goal if name.endswith("_max") else value < goal):
            names.append(name)
    return names
