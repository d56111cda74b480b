"""The scheduler in a little engine whose cache is plain lists: what a step relies on is checked."""

import itertools

import numpy as np

from services.rollout.engines.contract.engine import GenerateRequest
from services.rollout.engines.torch.batch import GIVE_BACK
from services.rollout.engines.torch.scheduler import SequenceScheduler

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

    def __init__(self, bound: int, keep: bool, drafts: bool = False) -> None:
        self.scheduler = SequenceScheduler(
            SLOTS, CONTEXT, kv_tokens=bound, rows=CONTEXT, page=PAGE, drafts=drafts
        )
        self.table, self.kv = self.scheduler.table, self.scheduler.kv
        self.cache, self.bound, self.keep, self.version = Cache(), bound, keep, 0
        self.names = itertools.count()
        self.ended: list[str] = []

    @property
    def busy(self) -> bool:
        return self.scheduler.has_work

    def submit(self, ids: list[int], session: str) -> None:
        name = str(next(self.names))
        request = GenerateRequest(request_id=name, ids=ids, max_new_tokens=NEW, session=session)
        self.scheduler.add(request)

    def step(self, budget: int) -> None:
        planned = self.scheduler.schedule(budget)
        if planned is None:
            assert not self.scheduler.waiting or self.kv.held
            return
        batch, complete = planned
        self.cache.move(batch.moves)
        first = 0
        for slot, start, count in zip(batch.slots, batch.starts, batch.counts, strict=True):
            rows, ids = self.cache.rows[slot], self.table.tokens[slot]
            assert all(row is not None and row[0] == ids[n] for n, row in enumerate(rows[:start]))
            if self.table.fresh[slot]:
                assert all(row is not None and row[1] == self.version for row in rows[:start])
            computed = batch.tokens[first : first + count]
            rows[start : start + count] = [(int(token), self.version) for token in computed]
            first += count
        assert self.cache.taken() <= self.kv.budget.committed.sum() <= self.bound
        of, behind = batch.sampled_rows()
        of, behind = of[complete[of]], behind[complete[of]]
        new = (self.table.length[batch.slots[of]] + behind) % 3
        done, _, _, full = self.scheduler.advance(batch, complete, new, np.zeros(len(new)), self.version)
        for slot in done[full]:
            self.ended.append(self.table.request_id(slot))
            self.scheduler.finish(slot)

    def update(self) -> None:
        self.version += 1
        self.kv.outdate() if self.keep else self.kv.drop_all()

    def finish(self) -> None:
        """Step until nothing is left to do; every request has then ended once."""
        for _ in range(10_000):
            if not self.busy:
                break
            self.step(30)
        assert sorted(self.ended, key=int) == [str(n) for n in range(next(self.names))]
