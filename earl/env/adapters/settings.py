"""The settings of a task: its keys, their defaults, and which values each takes.

    KEYS = {"turns": Whole(64, 1, 1000), "opponent": Choice("random", "minimax")}
    settings = checked(task, KEYS)

A key that there is not, or a value that a key does not take, is a ValueError that names both and what
would do: the client that opened the session gets it as ENV_ERROR, in one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol


class Setting(Protocol):
    """A key's default, and `taken`: the value as the environment uses it, or None if it may not be."""

    default: Any
    expected: str

    def taken(self, value: Any) -> Any: ...


class Whole:
    """A whole number from `least` to `most`."""

    def __init__(self, default: int | None, least: int, most: int) -> None:
        self.default, self._least, self._most = default, least, most
        self.expected = f"a whole number between {least} and {most}"

    def taken(self, value: Any) -> int | None:
        return value if type(value) is int and self._least <= value <= self._most else None


class Number:
    """A finite number from `least` to `most`."""

    def __init__(self, default: float | None, least: float, most: float) -> None:
        self.default, self._least, self._most = default, least, most
        self.expected = f"a number between {least:g} and {most:g}"

    def taken(self, value: Any) -> float | None:
        if type(value) not in (int, float) or not math.isfinite(value):
            return None
        return float(value) if self._least <= value <= self._most else None


class ChoiceSetting:
    """A setting that takes one of several values; the first is the default."""

    def __init__(self, *values: Any) -> None:
        self.default, self._values = values[0], values
        self.expected = "one of " + ", ".join(map(repr, values))

    def taken(self, value: Any) -> Any:
        same = [choice for choice in self._values if choice == value and type(choice) is type(value)]
        return same[0] if same else None


class Text:
    """A text of at most `most` characters."""

    def __init__(self, default: str | None, most: int = 10_000) -> None:
        self.default, self._most = default, most
        self.expected = f"a text of at most {most} characters"

    def taken(self, value: Any) -> str | None:
        return value if isinstance(value, str) and len(value) <= self._most else None


class Letters:
    """A setting that takes some of these characters, at least one; the default is all of them."""

    def __init__(self, default: str) -> None:
        self.default = default
        self.expected = f"some of {default}"

    def taken(self, value: Any) -> str | None:
        return value if isinstance(value, str) and value and set(value) <= set(self.default) else None


class Some:
    """A list of some of the values, at least one; all of them are the default."""

    def __init__(self, *values: str) -> None:
        self.default, self._values = list(values), values
        self.expected = f"a list of some of {', '.join(values)}"

    def taken(self, value: Any) -> list[str] | None:
        known = isinstance(value, list) and all(entry in self._values for entry in value)
        return value if known and value else None


class TableSetting:
    """A table of names to values, which somebody else checks."""

    def __init__(self) -> None:
        self.default: dict[str, Any] = {}
        self.expected = "a table"

    def taken(self, value: Any) -> dict[str, Any] | None:
        return value if isinstance(value, dict) else None


def checked(task: Mapping[str, Any], keys: Mapping[str, Setting]) -> dict[str, Any]:
    """All keys with their values or defaults. Raises ValueError."""
    if unknown := sorted(set(task) - set(keys)):
        raise ValueError(f"unknown task key {unknown[0]!r}; known are {', '.join(keys) or 'none'}")
    settings = {key: setting.default for key, setting in keys.items()}
    for key, value in task.items():
        taken = keys[key].taken(value)
        if taken is None:
            raise ValueError(f"{key} {value!r} is not {keys[key].expected}")
        settings[key] = taken
    return settings
