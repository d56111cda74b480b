"""Figures of a run as text; what is not known is empty. Pure."""

from __future__ import annotations


def label(value: float) -> str:
    """A number in few characters: 12k, 0.25, 3."""
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    if 0 < abs(value) < 0.001:
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")
    if value == int(value):
        return f"{int(value)}"
    return f"{value:.4f}".rstrip("0").rstrip(".")


def percent(value: object, digits: int = 1) -> str:
    return f"{value:.{digits}%}" if isinstance(value, (int, float)) else ""


def count(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, (int, float)) else ""


def clock(seconds: object) -> str:
    if not isinstance(seconds, (int, float)):
        return ""
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def number(value: object, *, signed: bool = False) -> str:
    if not isinstance(value, (int, float)):
        return ""
    return ("+" if signed and value > 0 else "") + label(round(value, 3))
