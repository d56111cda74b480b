"""Finds the move in a text, and truncates texts to a length.

A move is written in brackets, "[left]". Models think aloud, so the last brackets count; a text without any
is the move itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# No move is longer: what is read of a text is bounded.
MAX_ACTION_CHARACTERS = 4_000
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_BLANKS = re.compile(r"\s+")


def move(action: str) -> str:
    """The move that an action says, without brackets, blanks at its ends, and capitals."""
    text = action[-MAX_ACTION_CHARACTERS:]
    bracketed = _BRACKETS.findall(text)
    return _plain(bracketed[-1] if bracketed else text)


def moves_by_name(moves: Iterable[str]) -> dict[str, int]:
    """Move as `move` reads it → its place in `moves`; of two that read alike, the first."""
    places: dict[str, int] = {}
    for place, name in enumerate(moves):
        places.setdefault(_plain(name), place)
    return places


def chosen_move(action: str, places: Mapping[str, int]) -> int | None:
    """The place of the move that an action says; None if it is none of them."""
    return places.get(move(action))


def _plain(text: str) -> str:
    return _BLANKS.sub(" ", text).strip().lower()


def shortened(text: str, most: int) -> str:
    """The text if it has at most `most` characters, else its beginning and end around a note."""
    if len(text) <= most:
        return text
    note = f"\n… {len(text) - most} characters left out …\n"
    head = most // 2
    return text[:head] + note + text[len(text) - (most - head) :]
