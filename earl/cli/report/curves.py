"""Curves over training steps: what report, page and comparison call them, and their running mean. Pure."""

from __future__ import annotations

from collections.abc import Sequence

TRAIN = "train"
STEP = "training step"
SMOOTHING_STEPS = 8


def smooth(points: Sequence[tuple[float, float]], window: int) -> list[tuple[float, float]]:
    """Running mean of up to `window` values that end at each point."""
    out = []
    for index, (x, _) in enumerate(points):
        part = [y for _, y in points[max(0, index + 1 - window) : index + 1]]
        out.append((x, sum(part) / len(part)))
    return out
