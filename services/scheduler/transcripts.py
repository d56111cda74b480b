"""Which episodes are asked for their conversation, and what one looks like. Pure.

Asked are `scheduler.transcripts` trajectories of each training batch and episodes of each evaluation:
the first, the last, and the rest evenly between. The choice follows from the place of an episode
alone, so every evaluation shows the same instances. Conversations never go to Redis.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.records import Purpose

TURNS = 32
TEXT_BYTES = 4096
# Sampled tokens of one turn, and characters of each.
TOKENS = 1024
TOKEN_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token that an engine sampled: its id, its part of the text, and the version that sampled it."""

    id: int
    text: str
    logprob: float
    version: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said. role: "system", "user", "tool" or "assistant". sampled: the first of its tokens,
    if an engine sampled them."""

    role: str
    text: str
    tokens: int
    sampled: tuple[Sampled, ...] = ()


def chosen(position: int, total: int, wanted: int) -> bool:
    """Whether the `position`-th (from 0) of `total` is among `wanted` that are spread evenly over them."""
    if wanted < 2 or total < 2:
        return wanted > 0 and position == 0
    count = min(wanted, total)
    return any(position == round(at * (total - 1) / (count - 1)) for at in range(count))


def asked(
    purpose: Purpose,
    index: int,
    member: int,
    *,
    batch_groups: int,
    group_size: int,
    episodes: int,
    wanted: int,
) -> bool:
    """Whether the ticket of this member of the purpose's index-th group carries the request.

    A training batch is counted as `batch_groups` groups in the order of their issue; which groups a
    batch really takes may differ by a few.
    """
    if purpose is Purpose.EVALUATE:
        return chosen(index, episodes, wanted)
    if purpose is Purpose.TRAIN:
        return chosen((index % batch_groups) * group_size + member, batch_groups * group_size, wanted)
    return False


def cut(text: str) -> str:
    """The text within TEXT_BYTES of UTF-8: head and tail, and how much is missing between them."""
    data = text.encode("utf-8", errors="replace")
    if len(data) <= TEXT_BYTES:
        return data.decode()
    half = TEXT_BYTES // 2 - 32
    head = data[:half].decode(errors="ignore")
    tail = data[-half:].decode(errors="ignore")
    return f"{head} […{len(data) - 2 * half} bytes…] {tail}"
