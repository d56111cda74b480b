"""A finished episode as a conversation, for a person to read.

Promise: at most TURNS turns and TEXT_BYTES of UTF-8 each; of what is longer, head and tail are kept and
the cut is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.rollout.columns import TokenColumns

TURNS = 32
TEXT_BYTES = 4096
_CUT = " […] "


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said. role: "system", "user", "tool" or "assistant". tokens: how many it took; those
    of the system message count with the first observation."""

    role: str
    text: str
    tokens: int


def conversation(
    system: str,
    observed: Sequence[tuple[str, str]],
    columns: TokenColumns,
    decode: Callable[[list[int]], str],
) -> list[Turn]:
    """observed: (role, text) of each observation, the last of which may have found no room.

    What the agent said is decoded from the columns, so that it is what was sampled.
    """
    turns = [Turn("system", system, 0)] if system else []
    start = 0
    for (role, text), count in zip(observed, columns.turn_tokens, strict=False):
        end = start + count
        spoken = columns.loss_mask.find(1, start, end)
        spoken = end if spoken < 0 else spoken
        turns.append(Turn(role, text, spoken - start))
        if spoken < end:
            turns.append(Turn("assistant", decode(columns.tokens[spoken:end]), end - spoken))
        start = end
    if len(turns) > TURNS:
        turns = turns[: TURNS // 2] + turns[-TURNS // 2 :]
    return [Turn(turn.role, shortened(turn.text), turn.tokens) for turn in turns]


def shortened(text: str, most_bytes: int = TEXT_BYTES) -> str:
    """The text, or its head and tail around a mark, in at most most_bytes of UTF-8."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= most_bytes:
        return encoded.decode("utf-8")
    half = (most_bytes - len(_CUT.encode())) // 2
    return encoded[:half].decode("utf-8", "ignore") + _CUT + encoded[-half:].decode("utf-8", "ignore")
