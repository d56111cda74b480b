"""Who sits in which slot of the KV cache: columns over slots, so that a step touches no sequence
one by one.

    free ──admit──► running ──finish──► free, or retained for its session's next turn ──► running …
                                                     └── evicted, the longest unused first

Pure bookkeeping: no clock, no I/O, no torch.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

import numpy as np

from services.rollout.engines.base import GenerateRequest
from services.rollout.engines.batch import Batch

NO_TOKEN = -1


class Slots:
    """S = slots, C = context tokens. Invariant: 0 <= cached < length <= C for running slots."""

    def __init__(self, slots: int, context: int) -> None:
        self.context = context
        # Tokens of the sequence [S, C] and how many there are; those before `cached` have their KV.
        self.tokens = np.zeros((slots, context), dtype=np.int64)
        self.length = np.zeros(slots, dtype=np.int64)
        self.cached = np.zeros(slots, dtype=np.int64)
        # Tokens before the first sampled one; length at which generation ends.
        self.prompt = np.zeros(slots, dtype=np.int64)
        self.limit = np.zeros(slots, dtype=np.int64)
        self.reused = np.zeros(slots, dtype=np.int64)
        self.running = np.zeros(slots, dtype=np.bool_)
        self.temperature = np.zeros(slots, dtype=np.float32)
        self.seed = np.zeros(slots, dtype=np.uint64)
        # Stop ids [S, K], padded with NO_TOKEN.
        self.stops = np.full((slots, 1), NO_TOKEN, dtype=np.int64)
        # Log-prob and version of each sampled token, at the token's position [S, C].
        self.logprobs = np.zeros((slots, context), dtype=np.float32)
        self.versions = np.zeros((slots, context), dtype=np.int64)
        self.request: list[str] = [""] * slots
        self.session: list[str] = [""] * slots
        self.slot_of: dict[str, int] = {}
        self._busy_sessions: dict[str, int] = {}
        # Idle sessions whose KV is kept, the longest unused first.
        self._retained: OrderedDict[str, int] = OrderedDict()
        # Low slots first: running slots stay close together.
        self._free = list(range(slots))
        self.evicted = 0

    @property
    def retained(self) -> int:
        """Idle sessions whose KV is kept."""
        return len(self._retained)

    def used_fraction(self) -> float:
        """Cached tokens over those that fit."""
        return float(self.cached.sum()) / self.tokens.size

    # --- sequences ----------------------------------------------------------------------------

    def admit(self, request: GenerateRequest, stop_ids: tuple[int, ...]) -> int | None:
        """Give the request a slot: its session's, a free one, or that of the longest unused session.
        None if all are running. stop_ids: the engine's, beside the request's own."""
        session = request.session if request.session not in self._busy_sessions else ""
        slot = self._retained.pop(session, None) if session else None
        if slot is None:
            slot = self._take()
        if slot is None:
            return None
        ids = np.asarray(request.ids, dtype=np.int64)
        # At least the last token is computed: its logits are what the first sample comes from.
        known = min(int(self.cached[slot]), len(ids) - 1)
        differs = np.flatnonzero(self.tokens[slot, :known] != ids[:known])
        reused = int(differs[0]) if len(differs) else known
        self.tokens[slot, : len(ids)] = ids
        self.length[slot] = self.prompt[slot] = len(ids)
        self.cached[slot] = self.reused[slot] = reused
        self.limit[slot] = len(ids) + request.max_new_tokens
        self.temperature[slot] = request.temperature
        self.seed[slot] = request.seed & 0xFFFF_FFFF_FFFF_FFFF
        self._set_stops(slot, {*stop_ids, *request.stop_ids})
        self.running[slot] = True
        self.request[slot], self.session[slot] = request.request_id, session
        self.slot_of[request.request_id] = slot
        if session:
            self._busy_sessions[session] = slot
        return slot

    def _take(self) -> int | None:
        if self._free:
            return heapq.heappop(self._free)
        if not self._retained:
            return None
        _, slot = self._retained.popitem(last=False)
        self.evicted += 1
        self.cached[slot] = 0
        return slot

    def _set_stops(self, slot: int, stops: set[int]) -> None:
        if len(stops) > self.stops.shape[1]:
            wider = np.full((len(self.stops), len(stops)), NO_TOKEN, dtype=np.int64)
            wider[:, : self.stops.shape[1]] = self.stops
            self.stops = wider
        self.stops[slot] = NO_TOKEN
        self.stops[slot, : len(stops)] = list(stops)

    def finish(self, slot: int) -> None:
        """The request is over; the slot is retained if a session wants it."""
        session = self.session[slot]
        self.running[slot] = False
        del self.slot_of[self.request[slot]]
        self.request[slot] = self.session[slot] = ""
        if session and self._busy_sessions.pop(session, None) is not None:
            self._retained[session] = slot
        else:
            self._vacate(slot)

    def release(self, session: str) -> None:
        """The session is over: its slot is vacated, at once or when its request ends."""
        slot = self._retained.pop(session, None)
        if slot is not None:
            self._vacate(slot)
        else:
            self._busy_sessions.pop(session, None)

    def drop_kv(self) -> None:
        """All KV is out of date: running sequences are prefilled again, retained ones vacated."""
        for slot in self._retained.values():
            self._vacate(slot)
        self._retained.clear()
        self.cached[self.running] = 0

    def _vacate(self, slot: int) -> None:
        self.cached[slot] = self.length[slot] = 0
        heapq.heappush(self._free, slot)

    # --- steps --------------------------------------------------------------------------------

    def plan(self, budget_tokens: int) -> tuple[Batch, np.ndarray] | None:
        """The next step's batch, and for each of its sequences whether it is complete, that is, gets a
        token sampled. Shortest first within the budget, so that decoding is never held up; None if
        nothing runs."""
        slots = np.flatnonzero(self.running)
        if len(slots) == 0:
            return None
        counts = self.length[slots] - self.cached[slots]
        total = int(counts.sum())
        if total > budget_tokens:
            order = np.argsort(counts, kind="stable")
            slots, counts = slots[order], counts[order]
            room = budget_tokens - (np.cumsum(counts) - counts)
            # Decoding alone may exceed the budget: a token each is always allowed.
            taken = np.minimum(counts, np.maximum(room, (counts == 1).astype(np.int64)))
            if taken.sum() <= 0:
                taken[0] = min(int(counts[0]), budget_tokens)
            kept = taken > 0
            slots, counts, taken = slots[kept], counts[kept], taken[kept]
        else:
            taken = counts
        starts = self.cached[slots]
        rows = np.repeat(slots, taken)
        columns = np.repeat(starts - (np.cumsum(taken) - taken), taken) + np.arange(int(taken.sum()))
        return Batch(slots, starts, taken, self.tokens[rows, columns]), taken == counts

    def advance(
        self, batch: Batch, complete: np.ndarray, ids: np.ndarray, logprobs: np.ndarray, version: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Record a step: ids and logprobs [number of complete sequences] that `version` sampled.

        Returns (sampled slots, stopped, full), the latter two bool over the first.
        """
        self.cached[batch.slots] += batch.counts
        slots = batch.slots[complete]
        positions = self.length[slots]
        self.tokens[slots, positions] = ids
        self.logprobs[slots, positions] = logprobs
        self.versions[slots, positions] = version
        self.length[slots] += 1
        stopped = (self.stops[slots] == ids[:, None]).any(1)
        return slots, stopped, self.length[slots] >= self.limit[slots]
