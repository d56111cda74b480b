"""Decides which sequences run: requests wait, are admitted, compute within a budget, are preempted, end.

    add ──► waiting ──admit──► running ──finish──► its slot is free, or kept for the session's next turn
               ▲                  │
               └──── preempt ─────┘   the youngest, when the KV of all would exceed the budget

A session is as old as its first turn, and the older goes first, in whichever turn. Pure: time is an argument.
"""

from __future__ import annotations

import bisect

import numpy as np

from services.rollout.engines.contract.engine import GenerateRequest
from services.rollout.engines.contract.stop_texts import StopTexts
from services.rollout.engines.torch.batch import StepBatch
from services.rollout.engines.torch.drafter import Drafter
from services.rollout.engines.torch.kv_allocator import KvAllocator
from services.rollout.engines.torch.slot_table import SlotTable
from services.rollout.engines.torch.waiting_request import WaitingRequest


class SequenceScheduler:
    """Schedules sequences over `slots` slots of `context` tokens.

    stop_ids: of the engine, in addition to each request's own; stop_texts: of all requests. kv_tokens, rows,
    page: as for KvAllocator. drafts: whether tokens are drafted.
    """

    def __init__(
        self,
        slots: int,
        context: int,
        stop_ids: tuple[int, ...] = (),
        *,
        kv_tokens: int = 0,
        rows: int = 0,
        page: int = 1,
        drafts: bool = False,
        stop_texts: StopTexts | None = None,
    ) -> None:
        self.table = SlotTable(slots, context, stop_texts)
        self.drafter = Drafter(self.table) if drafts else None
        self.kv = KvAllocator(self.table, kv_tokens=kv_tokens, rows=rows, page=page)
        # The oldest session's first.
        self.waiting: list[WaitingRequest] = []
        self.preemptions = 0
        # Prompt tokens that needed no computing, of every admitted request.
        self.reused_tokens = 0
        self._stop_ids = stop_ids

    @property
    def has_work(self) -> bool:
        """A sequence runs or waits."""
        return bool(self.table.slot_of) or bool(self.waiting)

    # --- requests -----------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> None:
        """The request waits until a slot and memory are there for it."""
        self._wait(WaitingRequest.of(request, self.kv.ages.of(request.session)))

    def withdraw(self, request_id: str) -> WaitingRequest | None:
        """Takes a request out of the queue; None if it does not wait."""
        for waiting in self.waiting:
            if waiting.request.request_id == request_id:
                self.waiting.remove(waiting)
                return waiting
        return None

    def finish(self, slot: int, until_ns: int = 0) -> None:
        """The slot's sequence has ended. Its KV is kept if a session wants it; younger sessions wait for it
        until then."""
        self.kv.free(slot, self.table.unseat(slot), until_ns)

    def release(self, session: str) -> None:
        """Ends the session: its KV may be dropped."""
        self.kv.release(session)
        for waiting in self.waiting:
            if waiting.reused is not None and waiting.session == session:
                waiting.session = ""

    def _wait(self, waiting: WaitingRequest) -> None:
        bisect.insort(self.waiting, waiting, key=lambda other: other.age)

    # --- steps --------------------------------------------------------------------------------

    def schedule(self, budget_tokens: int, now_ns: int = 0) -> tuple[StepBatch, np.ndarray] | None:
        """Admits what fits and plans the next step: its batch, and bool [B] whether each of its sequences is
        complete, that is, gets a token sampled. None if nothing runs.

        Shortest first within the budget, so that decoding is never held up; the oldest sequence gets half of
        the budget if it needs it. If the KV would exceed its bound, the youngest are preempted.
        """
        self._admit_waiting(now_ns)
        table = self.table
        while True:
            slots = table.running_slots()
            if len(slots) == 0:
                return None
            counts = table.length[slots] - table.cached[slots]
            chosen, taken, complete = share_budget(counts, table.age[slots], budget_tokens)
            slots = slots[chosen]
            starts, drafts = table.cached[slots], np.zeros_like(taken)
            if self.drafter is not None:
                spare = budget_tokens - int(taken.sum())
                drafts = self.drafter.draft(slots, complete, taken, spare)
            excess = self.kv.budget.commit(slots, starts + taken + drafts)
            if excess and drafts.any():
                drafts[:] = 0
                excess = self.kv.budget.commit(slots, starts + taken)
            if excess == 0:
                break
            if not self.kv.free_space(excess, now_ns):
                self._preempt(table.youngest())
        counts = taken + drafts
        rows = np.repeat(slots, counts)
        columns = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        tokens = table.tokens[rows, columns]
        return StepBatch(slots, starts, counts, drafts, tokens, self.kv.budget.take()), complete

    def advance(
        self, batch: StepBatch, complete: np.ndarray, ids: np.ndarray, logprobs: np.ndarray, version: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Records a step: ids and logprobs that `version` sampled, of each complete sequence behind its last
        token and behind each token of its draft [sum of 1 + drafts].

        Returns (slots that sampled, tokens that each has more, stopped, full), the latter two bool.
        """
        slots, drafts = batch.slots[complete], batch.drafts[complete]
        added, stopped, full = self.table.append(slots, drafts, ids, logprobs, version)
        # KV of rejected drafts is computed again, with the tokens that stand there.
        computed = batch.counts - batch.drafts
        computed[complete] += added - 1
        self.kv.advance(batch.slots, computed)
        if self.drafter is not None:
            self.drafter.note(slots, drafts, added)
        return slots, added, stopped, full

    def admit(self, waiting: WaitingRequest, now_ns: int = 0) -> int | None:
        """Runs a request in a slot; None if there is no slot or no memory for it."""
        session = "" if waiting.session in self.table.sessions else waiting.session
        slot = self.kv.allocate(waiting, session, now_ns)
        if slot is not None:
            self.table.seat(slot, waiting, session, self._stop_ids)
            if waiting.reused is None:
                self.reused_tokens += int(self.table.reused[slot])
        return slot

    def _admit_waiting(self, now_ns: int) -> None:
        """Admits what waits, in its order; a request whose prefix a running sequence is about to compute is
        passed over."""
        place = 0
        while place < len(self.waiting) and not self.kv.full:
            waiting = self.waiting[place]
            if self.kv.prefix_comes(waiting):
                place += 1
                continue
            if self.admit(waiting, now_ns) is None:
                break
            del self.waiting[place]

    def _preempt(self, slot: int) -> None:
        """The sequence leaves its slot, and its KV goes; it waits again with what was sampled."""
        self._wait(self.table.preempted(slot))
        self.kv.free_preempted(slot)
        self.preemptions += 1


def share_budget(
    counts: np.ndarray, ages: np.ndarray, budget: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(which sequences compute, tokens of each, whether those are all that it has) in a step of about
    `budget` tokens. counts [N]: what each has to compute; ages [N]: the oldest has the lowest."""
    if int(counts.sum()) <= budget:
        return np.arange(len(counts)), counts, np.ones(len(counts), dtype=np.bool_)
    chosen = np.argsort(counts, kind="stable")
    counts = counts[chosen]
    oldest = int(np.argmin(ages[chosen]))
    # Decoding alone may exceed the budget: a token each is always allowed.
    least = (counts == 1).astype(np.int64)
    least[oldest] = min(int(counts[oldest]), max(1, budget // 2))
    left = budget - least.sum()
    more = counts - least
    taken = least + np.clip(left - (np.cumsum(more) - more), 0, more)
    kept = taken > 0
    return chosen[kept], taken[kept], (taken == counts)[kept]
