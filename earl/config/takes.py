"""Words for the values that a key of the run file takes, where its type does not say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Takes:
    """Metadata of a key's type. text: follows "give" in a message."""

    text: str
