"""Allocation of KV slots to sequences: slots are allocated with the longest cached prefix, kept, evicted,
given back.

    free ── allocate ──► running ── free ──► idle, kept for its session's next turn ── allocate ──► running …
      ▲                     │                   └── evicted for another sequence (eviction.py) ──► free
      └──── preempted ──────┘      held: KV of a session arrives from another engine ──► idle

A free slot's KV stays until the slot or its memory is needed: together with running and idle sequences it is
the prefix cache (prefix_cache.py). Memory is taken from one budget (kv_budget.py). Pure: time is
an argument.
"""

from __future__ import annotations

import heapq

import numpy as np

from earl.models.common_prefix import common_prefix
from services.rollout.engines.torch.eviction import IdleSessions, SessionAges
from services.rollout.engines.torch.kv_budget import KvBudget
from services.rollout.engines.torch.prefix_cache import BLOCK_TOKENS, PrefixIndex
from services.rollout.engines.torch.slot_table import SlotTable
from services.rollout.engines.torch.waiting_request import WaitingRequest


class KvAllocator:
    """Allocates the table's S slots. kv_tokens: bound of the tokens whose KV exists (0: S * C); rows: of a
    slot (0: C), in pages of `page` tokens."""

    def __init__(self, table: SlotTable, *, kv_tokens: int = 0, rows: int = 0, page: int = 1) -> None:
        slots, rows = len(table.length), rows or table.context
        self.table = table
        self.budget = KvBudget(slots, rows, kv_tokens or slots * rows, page)
        self.ages = SessionAges()
        # Slots of sessions whose KV arrives from another engine.
        self.held: set[int] = set()
        self.evicted = 0
        self._prefixes = PrefixIndex(slots)
        # Sessions whose KV is kept for their next turn.
        self._idle = IdleSessions(table.age)
        # Low slots first: running slots stay close together.
        self._free = list(range(slots))

    @property
    def idle(self) -> int:
        """Sessions without a running sequence whose KV is kept."""
        return len(self._idle)

    @property
    def full(self) -> bool:
        """Returns whether every slot is running or held."""
        return not self._free and not self._idle

    def sessions(self) -> list[tuple[str, int]]:
        """(session, slot) of all whose KV is here, running or not, the oldest first."""
        pairs = [*self.table.sessions.items(), *self._idle.items()]
        return sorted(pairs, key=lambda pair: self.table.age[pair[1]])

    # --- allocation ---------------------------------------------------------------------------

    def prefix_comes(self, waiting: WaitingRequest) -> bool:
        """A running sequence is about to compute a longer prefix of the request than is cached: a request
        that waits for it never computes that."""
        if waiting.session in self._idle or not waiting.keys:
            return False
        return self._prefixes.longest(waiting.keys)[2]

    def allocate(self, waiting: WaitingRequest, session: str, now_ns: int) -> int | None:
        """A slot with the request's tokens and as much of their KV as is cached: the session's own, one that
        has its prefix, a free one, or that of a session that is evicted. session: the request's, "" if that
        runs already.

        None if there is no slot, or if the KV of running sequences, and of sessions that may not be evicted
        for it, leaves it no memory.
        """
        table, ids = self.table, waiting.ids
        running = table.running_slots()
        protected = self._idle.protected(waiting.age, now_ns, but=session)
        lengths, kept_tokens = table.length[running], table.cached[protected]
        if not self.budget.fits_all(lengths, kept_tokens, list(self.held), len(ids)):
            return None
        holder, shared = self._cached_prefix(waiting)
        slot = self._idle.pop(session) if session else None
        kept = 0 if slot is None else common_prefix(table.tokens[slot, : int(table.cached[slot])], ids[:-1])
        if slot is None:
            preferred = holder if shared else None
            slot = self._take(preferred, now_ns, evicts=len(protected) < len(self._idle))
        if slot is None:
            return None
        # Without memory for a copy, the session's own beginning stays.
        copied = self._copy_prefix(holder, slot, shared) if shared > kept else 0
        if not copied:
            table.revision[slot] += kept < table.cached[slot]
            self._prefixes.truncate(slot, kept)
            table.fresh[slot] |= kept == 0
        table.tokens[slot, : len(ids)] = ids
        table.cached[slot] = copied or kept
        self._note_blocks(slot)
        if table.fresh[slot]:
            self._prefixes.expect(slot, waiting.keys)
        return slot

    def _cached_prefix(self, waiting: WaitingRequest) -> tuple[int, int]:
        """(slot, tokens): who has the longest cached prefix of whole blocks; no tokens if nobody has."""
        holder, blocks, _ = self._prefixes.longest(waiting.keys)
        shared = blocks * BLOCK_TOKENS
        if shared and (self.table.tokens[holder, :shared] != waiting.ids[:shared]).any():
            return holder, 0  # another prefix of the same hash
        return holder, shared

    def _copy_prefix(self, holder: int, slot: int, shared: int) -> int:
        """Makes the holder's first `shared` rows the slot's; returns how many are: all, or none for want of
        memory."""
        if holder == slot:
            self._prefixes.truncate(slot, shared)
        else:
            target = np.array([slot]), np.array([shared])
            excess = self.budget.commit(*target)
            if excess and self._reclaim_unused(excess, keep=holder) == 0:
                excess = self.budget.commit(*target)
            if excess:
                return 0
            self.budget.copy(holder, slot, shared)
            self.table.revision[slot] += 1
            self._prefixes.truncate(slot, 0)
        self.table.fresh[slot] = True
        return shared

    def _take(self, preferred: int | None, now_ns: int, *, evicts: bool) -> int | None:
        """A free slot, the preferred one if it is free, or, if it `evicts`, that of an evicted session."""
        if preferred is not None and preferred in self._free:
            self._free.remove(preferred)
            heapq.heapify(self._free)
            return preferred
        if not self._free and not (evicts and self._evict(now_ns)):
            return None
        return heapq.heappop(self._free)

    def _evict(self, now_ns: int) -> bool:
        """Frees the slot of the idle session that is evicted first; False if there is none."""
        session = self._idle.next_evicted(now_ns)
        slot = self._idle.pop(session) if session is not None else None
        if slot is None:
            return False
        self._vacate(slot)
        self.evicted += 1
        return True

    # --- endings ------------------------------------------------------------------------------

    def free(self, slot: int, session: str, until_ns: int = 0) -> None:
        """The slot's sequence has ended. session: who wants its KV for another turn, for which younger
        sessions wait until then; "": nobody."""
        self._prefixes.give_up(slot)
        if session:
            self._idle.add(session, slot, until_ns)
        else:
            self._vacate(slot)

    def free_preempted(self, slot: int) -> None:
        """The slot's sequence was preempted: its KV and its memory go."""
        self.free(slot, "")
        self._drop_rows([slot], int(self.budget.committed[slot]))

    def release(self, session: str) -> None:
        """Ends the session: its slot becomes free, at once or when its sequence ends."""
        self.ages.forget(session)
        slot = self._idle.pop(session)
        if slot is not None:
            self._vacate(slot)
        else:
            self.table.sessions.pop(session, None)

    def _vacate(self, slot: int) -> None:
        self.table.cached[slot] = self.table.length[slot] = 0
        self.table.revision[slot] += 1
        heapq.heappush(self._free, slot)

    # --- hand-over ----------------------------------------------------------------------------

    def hold(self, session: str, first: int, tokens: int) -> int | None:
        """Takes the idle session's slot, or a free one, out of use while rows [first, tokens) of it arrive;
        then `keep` or `forget` it. None if they do not fit next to other sessions' KV."""
        slot = self._idle.pop(session)
        if slot is None:
            if not self._free:
                return None
            slot = heapq.heappop(self._free)
        self.held.add(slot)
        self.table.revision[slot] += first < self.table.cached[slot]
        self.table.cached[slot] = first
        self._prefixes.truncate(slot, first)
        target = np.array([slot]), np.array([tokens])
        excess = self.budget.commit(*target)
        if excess and (self._reclaim_unused(excess) or self.budget.commit(*target)):
            self.forget(slot)
            return None
        return slot

    def keep(self, slot: int, session: str, ids: np.ndarray, fresh: bool) -> bool:
        """The KV of ids [N] has arrived after the held slot's first `cached` tokens: it is the session's,
        unless that has begun again meanwhile. fresh: all of it is of the weights in use."""
        table, first = self.table, int(self.table.cached[slot])
        if session in table.sessions or session in self._idle:
            self.forget(slot)
            return False
        self.held.remove(slot)
        table.tokens[slot, first : first + len(ids)] = ids
        table.cached[slot] = table.length[slot] = first + len(ids)
        table.fresh[slot] = fresh and (first == 0 or bool(table.fresh[slot]))
        self._note_blocks(slot)
        table.age[slot] = self.ages.of(session)
        self._idle.add(session, slot, 0)
        return True

    def forget(self, slot: int) -> None:
        """Discards what arrived in the held slot, whose content may be anything, and frees the slot."""
        self.held.remove(slot)
        self._vacate(slot)
        self._prefixes.truncate(slot, 0)
        self.budget.give_back(slot)

    # --- memory -------------------------------------------------------------------------------

    def free_space(self, excess: int, now_ns: int) -> bool:
        """Gives back `excess` tokens' memory, evicting idle sessions last; False if it is not there, or only
        where the youngest of several running sequences may not take it."""
        table = self.table
        age = int(table.age[table.youngest()]) if len(table.slot_of) > 1 else -1
        protected = len(self._idle.protected(age, now_ns, but=""))
        excess = self._reclaim_unused(excess)
        while excess > 0 and len(self._idle) > protected and self._evict(now_ns):
            excess = self._reclaim_unused(excess)
        return excess <= 0

    def _drop_rows(self, slots: list[int], excess: int) -> int:
        """Gives back the memory of free slots until `excess` tokens are; returns what is still too many."""
        rest = self.budget.reclaim(np.array(slots, dtype=np.int64), np.zeros(len(slots), np.int64), excess)
        for slot in slots:
            if self.budget.committed[slot] == 0:
                self._prefixes.truncate(slot, 0)
        return rest

    def _reclaim_unused(self, excess: int, keep: int = -1) -> int:
        """Gives back what no sequence and no session needs; returns how many tokens are still too many.
        keep: a free slot whose rows stay."""
        table = self.table
        excess = self._drop_rows([slot for slot in self._free if slot != keep], excess)
        if excess > 0:
            taken = np.array([*table.slot_of.values(), *self._idle.slots()], dtype=np.int64)
            used = np.where(table.running[taken], table.length[taken], table.cached[taken])
            excess = self.budget.reclaim(taken, used, excess)
        return excess

    # --- weights ------------------------------------------------------------------------------

    def drop_all(self) -> None:
        """Drops all KV as out of date: running sequences are prefilled again, idle sessions lose theirs."""
        for slot in self._idle.slots():
            self._vacate(slot)
        self._idle.clear()
        self.table.cached[self.table.running] = 0
        self.table.revision += 1
        self._prefixes.clear()
        self.table.fresh[:] = True

    def wipe(self) -> None:
        """Clears all KV, none of which can be trusted, not even to be finite."""
        self.drop_all()
        self.budget.wipe()

    def outdate(self) -> None:
        """The weights have changed and sequences keep their KV: it serves nobody else from now on."""
        self._prefixes.clear()
        self.table.fresh &= self.table.cached == 0

    # --- steps --------------------------------------------------------------------------------

    def advance(self, slots: np.ndarray, counts: np.ndarray) -> None:
        """A step has computed counts [N] more tokens of slots [N]: whole blocks may serve others."""
        table = self.table
        table.cached[slots] += counts
        due = table.fresh[slots] & (table.cached[slots] // BLOCK_TOKENS > self._prefixes.blocks[slots])
        for slot in slots[due].tolist():
            self._note_blocks(slot)

    def _note_blocks(self, slot: int) -> None:
        if self.table.fresh[slot]:
            self._prefixes.extend(slot, self.table.tokens[slot, : int(self.table.cached[slot])])
