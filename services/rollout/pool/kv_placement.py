"""Which new engine a session goes to when engines change, and whether its KV goes along. Pure.

KV moves at its bytes over bytes_per_s and what one session's entry and pieces cost; or it is computed again
at tokens over prefill_tokens_per_s. Whichever is quicker is done, session by session; and nothing is moved
unless all of that together saves more than one hand-over costs, whatever its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

# Of one session in an offer, whatever its length: its entry, its pieces, its slot.
SESSION_S = 0.0005
# A read of so much is about its size.
MUCH_BYTES = 1 << 20
# A session's memory is taken in pages of up to so many tokens.
PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Rates:
    """What a pool has measured; before it has, what a small model on one core does, what shared memory gives
    with fresh pages, and what a few messages take. round_s: of an offer and its taking, however small."""

    bytes_per_s: float = 1e9
    round_s: float = 0.01
    prefill_tokens_per_s: float = 2000.0

    def prefilled(self, steps: Iterable[tuple[int, float]]) -> Rates:
        """With what engines have prefilled: (tokens, seconds of all their steps) each. Steps that also
        generated count against it, so the quickest engine is believed."""
        best = max((tokens / seconds for tokens, seconds in steps if tokens and seconds > 0), default=0.0)
        return replace(self, prefill_tokens_per_s=best) if best else self

    def read(self, size_bytes: int, seconds: float) -> Rates:
        """With what was taken last. Little of it tells the cost of a round, much of it the rate."""
        if not size_bytes or seconds <= 0:
            return self
        if size_bytes < MUCH_BYTES:
            return replace(self, round_s=(self.round_s + seconds) / 2)
        # However slow a round was, most of a long read is reading.
        return replace(self, bytes_per_s=size_bytes / max(seconds - self.round_s, seconds / 2))

    def move_s(self, tokens: int, token_bytes: int) -> float:
        """Seconds to hand over the KV of so many tokens of one session."""
        return SESSION_S + tokens * token_bytes / self.bytes_per_s

    def recompute_s(self, tokens: int) -> float:
        """Seconds to compute it again."""
        return tokens / self.prefill_tokens_per_s


def worth_moving(tokens: Mapping[str, int], token_bytes: int, rates: Rates) -> set[str]:
    """Those of the sessions whose KV is handed over. token_bytes: of one token's KV on all ranks."""
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
    room_tokens: int = 0,
) -> dict[str, int]:
    """Session -> engine: the longest first, each to the engine with the fewest tokens that has a place.

    places, room_tokens: sessions and tokens (0: any) that one engine holds. fixed: sessions that are there
    already; they stay. Sessions that fit nowhere are left out: they go wherever they ask next.
    """
    seats = {session: engine for session, engine in (fixed or {}).items() if session in tokens}
    load, free = [0] * engines, [places] * engines
    takes = {session: count + PAGE_TOKENS for session, count in tokens.items()}
    for session, engine in seats.items():
        load[engine] += takes[session]
        free[engine] -= 1
    for session in sorted(tokens.keys() - seats.keys(), key=lambda name: (-tokens[name], name)):
        engine = min(range(engines), key=lambda number: (free[number] <= 0, load[number]))
        if free[engine] > 0 and load[engine] + takes[session] <= (room_tokens or math.inf):
            seats[session] = engine
            load[engine] += takes[session]
            free[engine] -= 1
    return seats
