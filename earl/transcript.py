"""An episode as a conversation for a person to read: rollout makes it, the scheduler keeps it. Pure.

Promise: at most TURNS turns and TEXT_BYTES of UTF-8 each; of what is longer, head and tail are kept and
the truncation is marked. Of the sampled tokens the first TOKENS are kept one by one. The sender of a
transcript keeps to these bounds, and its receiver enforces them.
"""

from __future__ import annotations

from dataclasses import dataclass

TURNS = 32
TEXT_BYTES = 4096
TOKENS = 1024
TOKEN_BYTES = 64
_ELLIPSIS = " […] "


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token that an engine sampled, and the version that sampled it. text: what it adds to the tokens
    before it."""

    id: int
    text: str
    logprob: float
    version: int


@dataclass(frozen=True, slots=True)
class TranscriptTurn:
    """A message of a conversation. role: "system", "user", "tool" or "assistant". tokens: how many it took;
    the system message's count with the first observation. sampled: an assistant's first tokens.
    """

    role: str
    text: str
    tokens: int
    sampled: tuple[Sampled, ...] = ()


def shortened(text: str, most_bytes: int = TEXT_BYTES) -> str:
    """The text, or its head and tail around a mark, in at most most_bytes of UTF-8."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= most_bytes:
        return encoded.decode("utf-8")
    half = (most_bytes - len(_ELLIPSIS.encode())) // 2
    return encoded[:half].decode("utf-8", "ignore") + _ELLIPSIS + encoded[-half:].decode("utf-8", "ignore")
