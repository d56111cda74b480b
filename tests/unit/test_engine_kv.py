"""Slots under a bound against a plain cache: every row that a sequence relies on is there, of the right
token and version, whatever was copied, given back, preempted and evicted."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.rollout.engines.base import GenerateRequest
from services.rollout.engines.batch import GIVE_BACK
from services.rollout.engines.prefix import PrefixIndex, block_keys
from services.rollout.engines.slots import Slots
from services.rollout.engines.waiting import Waiting

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
            assert not self.waiting
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


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_what_is_relied_on_is_there(data):
    run = Run(data.draw(st.sampled_from([80, 128, 240, 320])), data.draw(st.booleans()))
    for _ in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(["submit", "submit", "step", "step", "step", "release", "update"]))
        if action == "submit":
            # Prefixes are common: a head of one token, many times, then something of its own.
            ids = [7] * data.draw(st.integers(0, 50)) + data.draw(
                st.lists(st.integers(0, 2), min_size=1, max_size=9)
            )
            run.submit(ids, data.draw(st.sampled_from(["", "s", "t"])))
        elif action == "release":
            run.slots.release(data.draw(st.sampled_from("st")))
        elif action == "update":
            run.update()
        else:
            run.step(data.draw(st.sampled_from([1, 5, 20, 100])))
    for _ in range(10_000):
        if not run.waiting and not run.slots.slot_of:
            break
        run.step(30)
    assert sorted(run.ended, key=int) == [str(n) for n in range(next(run.orders))]


def test_the_index_finds_the_longest_prefix_and_forgets():
    index, ids = PrefixIndex(3), np.arange(80)
    keys = block_keys(ids)
    assert len(keys) == 5 and keys[:2] == block_keys(ids[:47])
    index.extend(0, ids[:40])
    index.extend(1, ids[:70])
    assert index.longest(keys) == (1, 4, False) and index.longest(keys[:1])[1:] == (1, False)
    index.expect(2, keys)
    assert index.longest(keys) == (1, 4, True)
    index.truncate(1, 35)
    assert index.longest(keys)[1] == 2
    index.give_up(2)
    assert not index.longest(keys)[2]
    index.truncate(0, 0)
    index.truncate(1, 0)
    assert index.longest(keys) == (-1, 0, False) and not index.blocks.any()
    index.extend(0, ids[:40])
    index.clear()
    assert index.longest(keys) == (-1, 0, False)
