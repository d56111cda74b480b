"""Chooses each session's new engine when engines are replaced, and whether its KV is moved. Pure.

Moving KV takes its bytes over bytes_per_s and a constant per session; computing it again takes its tokens
over prefill_tokens_per_s. The quicker of the two is done, session by session; but nothing is moved unless
that saves, over all sessions, more than the constant cost of a round of hand-over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

# Cost of one session in an offer, whatever its length: its entry, its pieces, its slot.
SESSION_S = 0.0005
# The time of a read of so many bytes is decided by its size, that of a smaller one by the round.
LARGE_READ_BYTES = 1 << 20
# A session's memory is taken in pages of up to so many tokens.
PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates that a pool has measured. The defaults are those of a small model on one core, of shared memory
    with fresh pages, and of a few messages. round_s: of an offer and its taking, however small."""

    bytes_per_s: float = 1e9
    round_s: float = 0.01
    prefill_tokens_per_s: float = 2000.0

    def prefilled(self, steps: Iterable[tuple[int, float]]) -> Rates:
        """Updates the prefill rate from (tokens, seconds of all steps) of each engine. Steps that also
        generated make an engine look slow, so the quickest engine counts."""
        best = max((tokens / seconds for tokens, seconds in steps if tokens and seconds > 0), default=0.0)
        return replace(self, prefill_tokens_per_s=best) if best else self

    def read(self, size_bytes: int, seconds: float) -> Rates:
        """Updates the rates from one read: a small one tells the cost of a round trip, a large one the bytes
        per second."""
        if not size_bytes or seconds <= 0:
            return self
        if size_bytes < LARGE_READ_BYTES:
            return replace(self, round_s=(self.round_s + seconds) / 2)
        # However slow a round was, at least half of a large read is reading.
        return replace(self, bytes_per_s=size_bytes / max(seconds - self.round_s, seconds / 2))

    def move_s(self, tokens: int, token_bytes: int) -> float:
        """Seconds to hand over the KV of so many tokens of one session."""
        return SESSION_S + tokens * token_bytes / self.bytes_per_s

    def large(self, tokens: int, token_bytes: int) -> bool:
        """Returns whether so many tokens' KV takes longer to read than a round's fixed cost."""
        return tokens * token_bytes / self.bytes_per_s > self.round_s

    def recompute_s(self, tokens: int) -> float:
        """Seconds to compute the KV of so many tokens again."""
        return tokens / self.prefill_tokens_per_s


def worth_moving(tokens: Mapping[str, int], token_bytes: int, rates: Rates) -> set[str]:
    """The sessions whose KV is handed over. tokens: by session; token_bytes: of one token's KV on all
    ranks."""
    saved_s = {
        session: rates.recompute_s(count) - rates.move_s(count, token_bytes)
        for session, count in tokens.items()
    }
    worth = {session for session, seconds in saved_s.items() if seconds > 0}
    return worth if sum(saved_s[session] for session in worth) > rates.round_s else set()


def place(
    tokens: Mapping[str, int],
    engines: int,
    places: int,
    fixed: Mapping[str, int] | None = None,
    *,
    engine_tokens: int = 0,
) -> dict[str, int]:
    """Session -> engine: the longest first, each to the engine with the fewest tokens that has a place.

    places, engine_tokens: how many sessions and tokens (0: any number) one engine holds. fixed: sessions that
    are placed already; they stay. Sessions that fit nowhere are left out: their next turn is routed as any.
    """
    placed = {session: engine for session, engine in (fixed or {}).items() if session in tokens}
    load, free = [0] * engines, [places] * engines
    takes = {session: count + PAGE_TOKENS for session, count in tokens.items()}
    for session, engine in placed.items():
        load[engine] += takes[session]
        free[engine] -= 1
    for session in sorted(tokens.keys() - placed.keys(), key=lambda name: (-tokens[name], name)):
        engine = min(range(engines), key=lambda number: (free[number] <= 0, load[number]))
        if free[engine] > 0 and load[engine] + takes[session] <= (engine_tokens or math.inf):
            placed[session] = engine
            load[engine] += takes[session]
            free[engine] -= 1
    return placed
