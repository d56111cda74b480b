"""Environments that differ in a few attributes alone: a class for each game or data set of a package."""

from __future__ import annotations

import re
from typing import Any

from earl.env.base import Environment


def variant(base: type[Environment], name: str, description: str, **attributes: Any) -> type[Any]:
    """A subclass of `base` that is served as `name`, "package/game", with further attributes of its class."""
    title = "".join(word.capitalize() for word in re.split(r"[\W_]+", name))
    # From here a process of its own loads it (isolation.py).
    attributes["__module__"] = base.__module__
    attributes |= {"__doc__": description, "name": name, "description": description}
    return type(title, (base,), attributes)
