"""The metrics of an episode, as its last result carries them."""

from __future__ import annotations


def metrics(**figures: float) -> dict[str, float]:
    """Converts each figure to a float; a bool, such as `win`, becomes 0 or 1."""
    return {name: float(value) for name, value in figures.items()}
