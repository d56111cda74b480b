"""Which new engine a session goes to when engines change, and whether its KV goes along. Pure.

KV moves at its bytes over bytes_per_s and what one session's descriptor and pieces cost; or it is computed
again at tokens over prefill_tokens_per_s. Whichever is quicker is done, session by session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

# Of one session in an offer, whatever its length: its entry, its pieces, its slot.
SESSION_S = 0.0005


@dataclass(frozen=True, slots=True)
class Rates:
    """What a pool has measured; before it has, what a small model on one core does and what shared memory
    gives with fresh pages."""

    bytes_per_s: float = 1e9
    prefill_tokens_per_s: float = 2000.0

    def prefilled(self, steps: Iterable[tuple[int, float]]) -> Rates:
        """With what engines have prefilled: (tokens, seconds of all their steps) each. Steps that also
        generated count against it, so the quickest engine is believed."""
        best = max((tokens / seconds for tokens, seconds in steps if tokens and seconds > 0), default=0.0)
        return replace(self, prefill_tokens_per_s=best) if best else self

    def read(self, size_bytes: int, seconds: float) -> Rates:
        """With what was handed over last."""
        if not size_bytes or seconds <= 0:
            return self
        return replace(self, bytes_per_s=size_bytes / seconds)

    def move_s(self, tokens: int, token_bytes: int) -> float:
        """Seconds to hand over the KV of so many tokens of one session."""
        return SESSION_S + tokens * token_bytes / self.bytes_per_s

    def recompute_s(self, tokens: int) -> float:
        """Seconds to compute it again."""
        return tokens / self.prefill_tokens_per_s


def worth_moving(tokens: Mapping[str, int], token_bytes: int, rates: Rates) -> set[str]:
    """Those of the sessions whose KV is handed over. token_bytes: of one token's KV on all ranks."""
    return {
        session
        for session, count in tokens.items()
        if rates.move_s(count, token_bytes) < rates.recompute_s(count)
    }


def place(
    tokens: Mapping[str, int], engines: int, places: int, fixed: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Session -> engine: the longest first, each to the engine with the fewest tokens that has a place.

    places: sessions that one engine holds. fixed: sessions that are there already; they stay. Sessions for
    which no engine has a place are left out: they go wherever they ask next.
    """
    seats = {session: engine for session, engine in (fixed or {}).items() if session in tokens}
    load, free = [0] * engines, [places] * engines
    for session, engine in seats.items():
        load[engine] += tokens[session]
        free[engine] -= 1
    for session in sorted(tokens.keys() - seats.keys(), key=lambda name: (-tokens[name], name)):
        open_ = [engine for engine in range(engines) if free[engine] > 0]
        if not open_:
            break
        engine = min(open_, key=lambda number: load[number])
        seats[session] = engine
        load[engine] += tokens[session]
        free[engine] -= 1
    return seats
