"""The meaning of each key of a run file, and when to change it: the comment above its field, read from the
source when somebody asks.

A comment has two paragraphs, with an empty comment line between them:

    # Seconds that a step may take.                      what the key is
    #
    # Raise it for tools that compute for long.          when to change it, in which direction
    step_s: float = 30.0
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import NamedTuple

from pydantic import BaseModel

from earl.config import keys
from earl.config.base import ConfigSection
from earl.config.run import RunConfig


class KeyComment(NamedTuple):
    """The comment above a field. meaning, advice: its two paragraphs; "" for one that is not there."""

    meaning: str = ""
    advice: str = ""


@cache
def comments(section: type[BaseModel]) -> dict[str, KeyComment]:
    """The comment of each key of a section, also of those that it inherits."""
    by_key: dict[str, KeyComment] = {}
    above: list[str] = []
    owners = [owner for owner in reversed(section.__mro__) if issubclass(owner, ConfigSection)]
    for line in "".join(map(inspect.getsource, owners)).splitlines():
        text = line.strip()
        if text.startswith("#"):
            above.append(text.lstrip("# "))
            continue
        name = text.partition(":")[0]
        if name in section.model_fields:
            by_key[name] = key_comment(above)
        above = []
    return by_key


def key_comment(lines: list[str]) -> KeyComment:
    """A comment's lines as its paragraphs; what follows the second belongs to it."""
    empty = lines.index("") if "" in lines else len(lines)
    return KeyComment(" ".join(lines[:empty]), " ".join(filter(None, lines[empty:])))


def comment_of(key: str) -> KeyComment:
    """The comment of a dotted key. For a section: the first paragraph of its docstring, without advice."""
    *above, name = key.split(".")
    section: type[BaseModel] = RunConfig
    for part in above:
        section = keys.section_of(section.model_fields[part])
    field = section.model_fields[name]
    if keys.is_section(field):
        return KeyComment((keys.section_of(field).__doc__ or "").strip().partition("\n\n")[0])
    return comments(section)[name]
