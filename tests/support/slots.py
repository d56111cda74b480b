"""Slots in a little engine whose cache is plain lists: what a step relies on is checked."""

import itertools

import numpy as np

from services.rollout.engines.contract.engine import GenerateRequest
from services.rollout.engines.torch.batch import GIVE_BACK
from services.rollout.engines.torch.slots import Slots
from services.rollout.engines.torch.waiting_request import Waiting

SLOTS, CONTEXT, PAGE, NEW = 4, 80, 8, 12


class Cache:
    """(token, version) of each row, as Batch.moves and steps leave them; None: reads as zeros."""

    def __init__(self) -> None:
        self.rows: list[list[tuple[int, int] | None]] = [[None] * CONTEXT for _ in range(SLOTS)]

    def move(self, moves: np.ndarray) -> None:
        for source, target, count, stop in moves.tolist():
            if source == GIVE_BACK:
                self.rows[target][count:stop] = [None] * (stop - count)
            else:
                self.rows[target][:count] = self.rows[source][:count]

    def taken(self) -> int:
        """Tokens in pages that hold anything."""
        return sum(
            PAGE
            for rows in self.rows
            for first in range(0, CONTEXT, PAGE)
            if any(row is not None for row in rows[first : first + PAGE])
        )


class Run:
    """A little engine: `step` checks what the real one would have computed from."""

    def __init__(self, bound: int, keep: bool) -> None:
        self.slots = Slots(SLOTS, CONTEXT, kv_tokens=bound, rows=CONTEXT, page=PAGE)
        self.cache, self.bound, self.keep, self.version = Cache(), bound, keep, 0
        self.waiting: list[Waiting] = []
        self.orders = itertools.count()
        self.ended: list[str] = []
        # Of each admitted request, the rows that were reused.
        self.reused: dict[str, int] = {}

    def submit(self, ids: list[int], session: str) -> None:
        name = str(next(self.orders))
        request = GenerateRequest(request_id=name, ids=ids, max_new_tokens=NEW, session=session)
        self.waiting.append(Waiting.of(request, int(name)))

    def step(self, budget: int) -> None:
        held = []
        while self.waiting and not self.slots.full:
            if self.slots.comes_soon(self.waiting[0]):
                held.append(self.waiting.pop(0))
            elif self.slots.admit(self.waiting[0], ()) is None:
                break
            else:
                self.waiting.pop(0)
        self.waiting = held + self.waiting
        planned = self.slots.plan(budget)
        self.waiting = self.slots.preempted[::-1] + self.waiting
        self.slots.preempted = []
        if planned is None:
            assert not self.waiting or self.slots.held
            return
        batch, complete = planned
        self.cache.move(batch.moves)
        at = 0
        for slot, start, count in zip(batch.slots, batch.starts, batch.counts, strict=True):
            rows, ids = self.cache.rows[slot], self.slots.tokens[slot]
            assert all(row is not None and row[0] == ids[n] for n, row in enumerate(rows[:start]))
            if self.slots.fresh[slot]:
                assert all(row is not None and row[1] == self.version for row in rows[:start])
            rows[start : start + count] = [(int(t), self.version) for t in batch.tokens[at : at + count]]
            at += count
        assert self.cache.taken() <= self.slots.memory.committed.sum() <= self.bound
        new = self.slots.length[batch.slots[complete]] % 3
        done, _, full = self.slots.advance(batch, complete, new, np.zeros(len(new)), self.version)
        for slot in done[full].tolist():
            self.ended.append(self.slots.id_of(slot))
            self.slots.finish(slot)

    def update(self) -> None:
        self.version += 1
        self.slots.age() if self.keep else self.slots.drop_kv()

    def finish(self) -> None:
        """Step until nothing is left to do; every request has then ended once."""
        for _ in range(10_000):
            if not self.waiting and not self.slots.slot_of:
                break
            self.step(30)
        assert sorted(self.ended, key=int) == [str(n) for n in range(next(self.orders))]
