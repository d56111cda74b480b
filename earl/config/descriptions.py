"""The meaning of each key of a run file: the comment above its field, read from the source when somebody
asks.
"""

from __future__ import annotations

import inspect
from functools import cache

from pydantic import BaseModel

from earl.config import keys
from earl.config.base import ConfigSection
from earl.config.run import RunConfig


@cache
def descriptions(section: type[BaseModel]) -> dict[str, str]:
    """The description of each key of a section; "" for a key that has none."""
    by_key: dict[str, str] = {}
    above: list[str] = []
    owners = [owner for owner in reversed(section.__mro__) if issubclass(owner, ConfigSection)]
    for line in "".join(map(inspect.getsource, owners)).splitlines():
        text = line.strip()
        if text.startswith("#"):
            above.append(text.lstrip("# "))
            continue
        name = text.partition(":")[0]
        if name in section.model_fields:
            by_key[name] = " ".join(above)
        above = []
    return by_key


def description(key: str) -> str:
    """The description of a dotted key, or of a section; "" where there is none."""
    *above, name = key.split(".")
    section: type[BaseModel] = RunConfig
    for part in above:
        section = keys.section_of(section.model_fields[part])
    field = section.model_fields[name]
    if keys.is_section(field):
        return (keys.section_of(field).__doc__ or "").strip().partition("\n\n")[0]
    return descriptions(section)[name]
