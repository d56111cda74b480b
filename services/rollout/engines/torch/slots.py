"""Who sits in which slot of the KV cache: columns over slots, so that a step touches no sequence
one by one.

    waiting ──admit──► running ──finish──► free, or retained for its session's next turn ──► running …
       ▲                  │                                └── evicted: who goes first, idle.py says
       └─────preempt──────┘  (the youngest, when the KV of all would exceed the bound)

A session is as old as its first turn, and the older one goes first, in whichever turn.

A slot is held, neither free nor in use, while a session's KV arrives in it from another engine.

A free slot's KV stays until the slot or its memory is needed: with what runs and what is retained it is
the prefix cache (prefix.py). Pure bookkeeping: no clock, no I/O, no torch.
"""

from __future__ import annotations

import heapq

import numpy as np

from services.rollout.engines.contract.engine import GenerateRequest
from services.rollout.engines.torch.batch import Batch, share
from services.rollout.engines.torch.eviction import Ages, Idle
from services.rollout.engines.torch.kv_budget import KvMemory
from services.rollout.engines.torch.prefix_cache import BLOCK_TOKENS, PrefixIndex, common
from services.rollout.engines.torch.stops import Stops
from services.rollout.engines.torch.waiting_request import Waiting


class Slots:
    """S = slots, C = context tokens. Invariant: 0 <= cached < length <= C for running slots.

    kv_tokens: bound of the tokens whose KV exists (0: S * C); rows: of a slot (0: C), in pages of `page`.
    """

    def __init__(self, slots: int, context: int, *, kv_tokens: int = 0, rows: int = 0, page: int = 1) -> None:
        self.context = context
        rows = rows or context
        self.memory = KvMemory(slots, rows, kv_tokens or slots * rows, page)
        self.index = PrefixIndex(slots)
        # Tokens of the sequence [S, C] and how many there are; those before `cached` have their KV.
        self.tokens = np.zeros((slots, context), dtype=np.int64)
        self.length = np.zeros(slots, dtype=np.int64)
        self.cached = np.zeros(slots, dtype=np.int64)
        # Grows whenever KV that was cached is lost or computed anew: rows of one life stay as they are.
        self.life = np.zeros(slots, dtype=np.int64)
        # All of a slot's KV is of the weights in use.
        self.fresh = np.ones(slots, dtype=np.bool_)
        # Tokens before the first sampled one; length at which generation ends.
        self.prompt = np.zeros(slots, dtype=np.int64)
        self.limit = np.zeros(slots, dtype=np.int64)
        self.reused = np.zeros(slots, dtype=np.int64)
        self.running = np.zeros(slots, dtype=np.bool_)
        self.order = np.zeros(slots, dtype=np.int64)
        self.temperature = np.zeros(slots, dtype=np.float32)
        self.seed = np.zeros(slots, dtype=np.uint64)
        self.stops = Stops(slots)
        # Log-prob and version of each sampled token, at the token's position [S, C].
        self.logprobs = np.zeros((slots, context), dtype=np.float32)
        self.versions = np.zeros((slots, context), dtype=np.int64)
        self.request: list[GenerateRequest | None] = [None] * slots
        self.session: list[str] = [""] * slots
        self.slot_of: dict[str, int] = {}
        self._busy_sessions: dict[str, int] = {}
        # Sessions whose KV is kept for their next turn.
        self._retained = Idle(self.order)
        self.ages = Ages()
        # Slots of sessions whose KV arrives from another engine.
        self.held: set[int] = set()
        # Low slots first: running slots stay close together.
        self._free = list(range(slots))
        self.evicted = self.preemptions = 0
        # Those that plan() preempted, the oldest last.
        self.preempted: list[Waiting] = []

    @property
    def retained(self) -> int:
        """Idle sessions whose KV is kept."""
        return len(self._retained)

    @property
    def full(self) -> bool:
        """Every slot runs."""
        return not self._free and not self._retained

    def id_of(self, slot: int) -> str:
        """The request that runs there."""
        request = self.request[slot]
        assert request is not None
        return request.request_id

    def used_tokens(self) -> int:
        """Tokens whose KV is there for a sequence that runs or a session that may go on."""
        return int(self.cached.sum())

    # --- admission ----------------------------------------------------------------------------

    def comes_soon(self, waiting: Waiting) -> bool:
        """A sequence that runs is about to compute a longer prefix of the request than is there: one
        that waits for it computes it never."""
        if waiting.session in self._retained or not waiting.keys:
            return False
        return self.index.longest(waiting.keys)[2]

    def admit(self, waiting: Waiting, stop_ids: tuple[int, ...], now_ns: int = 0) -> int | None:
        """Give the request a slot: its session's, one with its prefix, a free one, or that of a session that
        gives way. None if there is none, or if the KV of those that run, and of those that do not give way,
        would leave it no room. stop_ids: the engine's, beside the request's own."""
        ids, running = waiting.ids, np.flatnonzero(self.running)
        session = waiting.session if waiting.session not in self._busy_sessions else ""
        stay = self._retained.before(waiting.order, now_ns, but=session)
        if not self.memory.has_room(self.length[running], self.cached[stay], list(self.held), len(ids)):
            return None
        holder, blocks, _ = self.index.longest(waiting.keys)
        shared = blocks * BLOCK_TOKENS
        if shared and (self.tokens[holder, :shared] != ids[:shared]).any():
            shared = 0  # another prefix of the same hash
        slot = self._retained.pop(session) if session else None
        own = 0 if slot is None else common(self.tokens[slot, : int(self.cached[slot])], ids[:-1])
        if slot is None:
            slot = self._take(holder if shared else None, now_ns, evicts=len(stay) < len(self._retained))
        if slot is None:
            return None
        reused = own
        if shared > own:
            # Without memory for the copy, the session's own beginning stays.
            reused = self._bring(holder, slot, shared) or own
        if reused == own:
            self.life[slot] += own < self.cached[slot]
            self.index.truncate(slot, own)
            self.fresh[slot] |= own == 0
        self.tokens[slot, : len(ids)] = ids
        self.cached[slot] = reused
        self._note_blocks(slot)
        if self.fresh[slot]:
            self.index.expect(slot, waiting.keys)
        self._seat(slot, waiting, stop_ids)
        self.session[slot] = session
        if session:
            self._busy_sessions[session] = slot
        return slot

    def _bring(self, holder: int, slot: int, shared: int) -> int:
        """Make the holder's first `shared` rows the slot's; returns how many are."""
        if holder != slot:
            excess = self.memory.commit(np.array([slot]), np.array([shared]))
            if excess and self._reclaim_unused(excess, keep=holder) == 0:
                excess = self.memory.commit(np.array([slot]), np.array([shared]))
            if excess:
                return 0
            self.memory.copy(holder, slot, shared)
            self.life[slot] += 1
            self.index.truncate(slot, 0)
        else:
            self.index.truncate(slot, shared)
        self.fresh[slot] = True
        return shared

    def _seat(self, slot: int, waiting: Waiting, stop_ids: tuple[int, ...]) -> None:
        request, length = waiting.request, len(waiting.ids)
        sampled = slice(len(request.ids), length)
        self.logprobs[slot, sampled], self.versions[slot, sampled] = waiting.logprobs, waiting.versions
        self.length[slot], self.prompt[slot] = length, len(request.ids)
        self.limit[slot] = len(request.ids) + request.max_new_tokens
        self.reused[slot] = self.cached[slot] if waiting.reused is None else waiting.reused
        self.order[slot] = waiting.order
        self.temperature[slot] = request.temperature
        self.seed[slot] = request.seed & 0xFFFF_FFFF_FFFF_FFFF
        self.stops.put(slot, {*stop_ids, *request.stop_ids})
        self.running[slot] = True
        self.request[slot] = request
        self.slot_of[request.request_id] = slot

    def _take(self, wanted: int | None, now_ns: int, *, evicts: bool) -> int | None:
        """A free slot, `wanted` if it is one, or, if it `evicts`, that of a session that gives way."""
        if wanted is not None and wanted in self._free:
            self._free.remove(wanted)
            heapq.heapify(self._free)
            return wanted
        if not self._free and not (evicts and self._evict(now_ns)):
            return None
        return heapq.heappop(self._free)

    def _evict(self, now_ns: int) -> bool:
        """Vacate the idle session that gives way first; False if there is none."""
        session = self._retained.next(now_ns)
        slot = self._retained.pop(session) if session is not None else None
        if slot is None:
            return False
        self._vacate(slot)
        self.evicted += 1
        return True

    # --- endings ------------------------------------------------------------------------------

    def finish(self, slot: int, until_ns: int = 0) -> None:
        """The request is over; the slot is retained if a session wants it, for which younger ones wait until
        then."""
        session = self._unseat(slot)
        if session:
            self._retained.add(session, slot, until_ns)
        else:
            self._vacate(slot)

    def _unseat(self, slot: int) -> str:
        """The slot runs no more; returns the session that still wants it."""
        request, session = self.request[slot], self.session[slot]
        assert request is not None
        self.running[slot] = False
        del self.slot_of[request.request_id]
        self.request[slot], self.session[slot] = None, ""
        self.index.give_up(slot)
        return session if self._busy_sessions.pop(session, None) is not None else ""

    def release(self, session: str) -> None:
        """The session is over: its slot is vacated, at once or when its request ends."""
        self.ages.forget(session)
        slot = self._retained.pop(session)
        if slot is not None:
            self._vacate(slot)
        else:
            self._busy_sessions.pop(session, None)

    def _vacate(self, slot: int) -> None:
        self.cached[slot] = self.length[slot] = 0
        self.life[slot] += 1
        heapq.heappush(self._free, slot)

    def preempt(self, slot: int) -> Waiting:
        """The request leaves its slot, and its KV goes; it keeps what it has sampled."""
        request = self.request[slot]
        assert request is not None
        length = int(self.length[slot])
        sampled = slice(int(self.prompt[slot]), length)
        waiting = Waiting(
            request,
            int(self.order[slot]),
            self._unseat(slot),
            self.tokens[slot, :length].copy(),
            self.logprobs[slot, sampled].copy(),
            self.versions[slot, sampled].copy(),
            int(self.reused[slot]),
        )
        self._vacate(slot)
        self._drop_rows([slot], int(self.memory.committed[slot]))
        self.preemptions += 1
        return waiting

    # --- hand-over ----------------------------------------------------------------------------

    def sessions(self) -> list[tuple[str, int]]:
        """(session, slot) of all whose KV is here, running or not, the oldest first."""
        here = [*self._busy_sessions.items(), *self._retained.items()]
        return sorted(here, key=lambda one: self.order[one[1]])

    def hold(self, session: str, first: int, tokens: int) -> int | None:
        """Take the idle session's slot, or a free one, out of use while rows [first, tokens) of it arrive;
        then `keep` or `forget` it. None if there is no room for them beside other sessions' KV."""
        slot = self._retained.pop(session)
        if slot is None:
            if not self._free:
                return None
            slot = heapq.heappop(self._free)
        self.held.add(slot)
        self.life[slot] += first < self.cached[slot]
        self.cached[slot] = first
        self.index.truncate(slot, first)
        wanted = np.array([slot]), np.array([tokens])
        excess = self.memory.commit(*wanted)
        if excess and (self._reclaim_unused(excess) or self.memory.commit(*wanted)):
            self.forget(slot)
            return None
        return slot

    def keep(self, slot: int, session: str, ids: np.ndarray, fresh: bool) -> bool:
        """The KV of ids [N] has arrived after the held slot's first `cached` tokens: it is the session's,
        unless that has begun anew meanwhile. fresh: all of it is of the weights in use."""
        first = int(self.cached[slot])
        if session in self._busy_sessions or session in self._retained:
            self.forget(slot)
            return False
        self.held.remove(slot)
        self.tokens[slot, first : first + len(ids)] = ids
        self.cached[slot] = self.length[slot] = first + len(ids)
        self.fresh[slot] = fresh and (first == 0 or bool(self.fresh[slot]))
        self._note_blocks(slot)
        self.order[slot] = self.ages.of(session)
        self._retained.add(session, slot, 0)
        return True

    def forget(self, slot: int) -> None:
        """What arrived in the held slot is not to be used; it may be anything, so it is given back."""
        self.held.remove(slot)
        self._vacate(slot)
        self.index.truncate(slot, 0)
        self.memory.give_back(slot)

    # --- memory -------------------------------------------------------------------------------

    def _drop_rows(self, slots: list[int], excess: int) -> int:
        """Give back the memory of slots that are free, until `excess` tokens are."""
        rest = self.memory.reclaim(np.array(slots, dtype=np.int64), np.zeros(len(slots), np.int64), excess)
        for slot in slots:
            if self.memory.committed[slot] == 0:
                self.index.truncate(slot, 0)
        return rest

    def _reclaim_unused(self, excess: int, keep: int = -1) -> int:
        """Give back what no sequence and no session needs; returns how many tokens are still too many."""
        excess = self._drop_rows([slot for slot in self._free if slot != keep], excess)
        if excess > 0:
            taken = np.array([*self.slot_of.values(), *self._retained.slots()], dtype=np.int64)
            used = np.where(self.running[taken], self.length[taken], self.cached[taken])
            excess = self.memory.reclaim(taken, used, excess)
        return excess

    def _make_room(self, excess: int, now_ns: int) -> bool:
        """Give back `excess` tokens' memory, at the cost of idle sessions last; False if it is not there, or
        only where the youngest of several that run may not take it."""
        youngest = int(self.order[self._youngest()]) if len(self.slot_of) > 1 else -1
        stay = len(self._retained.before(youngest, now_ns, but=""))
        excess = self._reclaim_unused(excess)
        while excess > 0 and len(self._retained) > stay and self._evict(now_ns):
            excess = self._reclaim_unused(excess)
        return excess <= 0

    def drop_kv(self) -> None:
        """All KV is out of date: running sequences are prefilled again, retained ones vacated."""
        for slot in self._retained.slots():
            self._vacate(slot)
        self._retained.clear()
        self.cached[self.running] = 0
        self.life += 1
        self.index.clear()
        self.fresh[:] = True

    def wipe(self) -> None:
        """No KV is to be trusted, not even by its being finite."""
        self.drop_kv()
        self.memory.wipe()

    def age(self) -> None:
        """The weights have changed and sequences keep their KV: it serves nobody else from now on."""
        self.index.clear()
        self.fresh &= self.cached == 0

    # --- steps --------------------------------------------------------------------------------

    def plan(self, budget_tokens: int, now_ns: int = 0) -> tuple[Batch, np.ndarray] | None:
        """The next step's batch, and for each of its sequences whether it is complete, that is, gets a
        token sampled. None if nothing runs.

        Shortest first within the budget, so that decoding is never held up; the oldest sequence gets half
        of the budget if it needs it. If the KV would exceed the bound, the youngest are preempted.
        """
        while True:
            slots = np.flatnonzero(self.running)
            if len(slots) == 0:
                return None
            counts = self.length[slots] - self.cached[slots]
            chosen, taken, complete = share(counts, self.order[slots], budget_tokens)
            slots = slots[chosen]
            starts = self.cached[slots]
            excess = self.memory.commit(slots, starts + taken)
            if excess == 0:
                break
            if not self._make_room(excess, now_ns):
                self.preempted.append(self.preempt(self._youngest()))
        rows = np.repeat(slots, taken)
        columns = np.repeat(starts - (np.cumsum(taken) - taken), taken) + np.arange(int(taken.sum()))
        return Batch(slots, starts, taken, self.tokens[rows, columns], self.memory.take()), complete

    def _youngest(self) -> int:
        running = np.flatnonzero(self.running)
        return int(running[np.argmax(self.order[running])])

    def advance(
        self, batch: Batch, complete: np.ndarray, ids: np.ndarray, logprobs: np.ndarray, version: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Record a step: ids and logprobs [number of complete sequences] that `version` sampled.

        Returns (sampled slots, stopped, full), the latter two bool over the first.
        """
        self.cached[batch.slots] += batch.counts
        due = self.fresh[batch.slots]
        due &= self.cached[batch.slots] // BLOCK_TOKENS > self.index.blocks[batch.slots]
        for slot in batch.slots[due].tolist():
            self._note_blocks(slot)
        slots = batch.slots[complete]
        positions = self.length[slots]
        self.tokens[slots, positions] = ids
        self.logprobs[slots, positions] = logprobs
        self.versions[slots, positions] = version
        self.length[slots] += 1
        return slots, self.stops.met(slots, ids), self.length[slots] >= self.limit[slots]

    def _note_blocks(self, slot: int) -> None:
        if self.fresh[slot]:
            self.index.extend(slot, self.tokens[slot, : int(self.cached[slot])])
