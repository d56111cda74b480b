"""Queues before engines: each sequence to one, none idle while anything waits, long ones to quick engines."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.assign.cost import DecodeCost
from services.scheduler.assign.plan import EngineFleet, EngineKind
from services.scheduler.assign.queues import (
    RESERVED_S,
    EngineQueues,
    LeasedSequences,
    WaitingBatch,
    planned_queues,
    sampled_tokens,
)

COST = DecodeCost(step_s=5e-3, sequence_s=4e-5, context_s=4e-8, prompt_s=4e-5)
QUICK = DecodeCost(step_s=2e-3, sequence_s=4e-5, context_s=2e-8, prompt_s=2e-5)
SLOTS = 4


def batch_of(lengths: list[int], first: int = 1) -> WaitingBatch:
    numbers = range(first, first + len(lengths))
    return WaitingBatch(numbers, np.zeros(len(lengths)), np.asarray(lengths, float))


def queues_of(
    batches: list[WaitingBatch],
    engines: int = 3,
    quick: int = 0,
    called_s: float = -np.inf,
    open_slots: int = SLOTS,
) -> EngineQueues:
    """Engines of the usual cost, the last `quick` of them of a quicker one, all idle at time 0."""
    kind = np.asarray([0] * (engines - quick) + [1] * quick)
    fleet = EngineFleet((EngineKind(COST, SLOTS), EngineKind(QUICK, SLOTS)), kind, np.zeros(engines))
    return EngineQueues(batches, fleet, np.full(engines, open_slots), np.full(engines, called_s), 0.0)


lengths_of = st.lists(st.integers(0, 40_000), max_size=40)
# (first engine, engines of the worker, open slots of each, seconds since the last question)
questions = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(0, SLOTS), st.floats(0, 5)), max_size=60
)


@given(st.lists(lengths_of, max_size=3), questions, st.integers(0, 2))
@settings(max_examples=50)
def test_each_is_taken_once_and_no_idle_engine_goes_without(
    batches: list[list[int]], asked: list[tuple[int, int, int, float]], quick: int
) -> None:
    waiting: set[int] = set()
    planned: list[WaitingBatch] = []
    for lengths in batches:
        planned.append(batch_of(lengths, len(waiting) + 1))
        waiting |= set(planned[-1].numbers)
    every, queues = set(waiting), queues_of(planned, engines=4, quick=quick)
    now_s = 0.0
    for first, count, open_slots, later_s in asked:
        engines = range(first, min(4, first + count))
        now_s += later_s
        placed = queues.take(engines, [open_slots] * len(engines), now_s, waiting.__contains__)
        if placed is not None:
            assert placed.engine in engines
            waiting.remove(placed.number)
        elif open_slots == SLOTS:
            # What is left begins at once at engines whose workers asked a moment ago.
            assert len(waiting) <= SLOTS * 4
    # Whoever is alone and idle gets all that is left, sooner or later.
    rest: list[int] = []
    for _ in range(len(waiting)):
        now_s += RESERVED_S + 1
        placed = queues.take(range(1), [SLOTS], now_s, waiting.__contains__)
        assert placed is not None
        waiting.remove(placed.number)
        rest.append(placed.number)
    assert queues.take(range(1), [SLOTS], now_s + 10, waiting.__contains__) is None
    assert len(set(rest)) == len(rest) and set(rest) <= every


def drained(queues: EngineQueues, engine: int) -> list[int]:
    """Returns what an engine gets of its own queue."""
    taken: list[int] = []
    while (placed := queues.take(range(engine, engine + 1), [0], 0.0, lambda _: True)) is not None:
        taken.append(placed.number)
    return taken


def test_long_ones_are_for_the_engines_of_quicker_steps() -> None:
    queues = queues_of([batch_of([100] * 30 + [30_000, 29_000])], engines=3, quick=1)
    assert {31, 32} <= set(drained(queues, 2))


def test_a_long_one_of_the_next_batch_begins_before_short_ones_of_this() -> None:
    queues = queues_of([batch_of([4_000, *[100] * 40]), batch_of([30_000, *[100] * 40], 42)], engines=1)
    order = drained(queues, 0)
    assert sorted(order) == list(range(1, 83)) and order.index(42) < order.index(41)


def test_who_asks_first_does_not_take_what_others_begin_at_once() -> None:
    lengths = [10_000, 9_000, 8_000]
    queues = queues_of([batch_of(lengths)], called_s=0.0)
    first = queues.take(range(1), [SLOTS], 0.0, lambda _: True)
    assert first is not None and not first.taken
    assert queues.take(range(1), [SLOTS], 1.0, {1, 2, 3}.__contains__) is None
    later = queues.take(range(1), [SLOTS], RESERVED_S + 1, lambda _: True)
    assert later is not None and later.taken and later.number != first.number


def test_what_no_longer_waits_is_forgotten() -> None:
    queues = queues_of([batch_of([500, 400, 300])], engines=1)
    placed = queues.take(range(1), [SLOTS], 0.0, {2, 3}.__contains__)
    assert placed is not None and placed.number == 2
    assert 1 in queues and 4 not in queues and len(queues) == 1


def test_an_engine_that_plays_takes_short_ones_and_only_if_that_gains() -> None:
    queues = queues_of([batch_of([20_000, *[5_000] * 12, 50])], engines=2, open_slots=0)
    queues._queues[0], queues._queues[1] = deque(range(1, 15)), deque()
    queues._count[:] = 14, 0
    queues._end_s[:] = 500.0, 1.0
    taken = queues.take(range(1, 2), [1], 0.0, lambda _: True)
    assert taken is not None and taken.taken and taken.number == 14
    queues._end_s[:] = 500.0, 600.0
    assert queues.take(range(1, 2), [1], 0.0, lambda _: True) is None
    # An idle one takes something all the same: the longest if that gains.
    assert (idle := queues.take(range(1, 2), [SLOTS], 0.0, lambda _: True)) is not None and idle.number == 13
    queues._end_s[:] = 500.0, 1.0
    assert (idle := queues.take(range(1, 2), [SLOTS], 0.0, lambda _: True)) is not None and idle.number == 1


def test_an_engine_that_is_late_has_short_ones_of_the_next_batch() -> None:
    kinds, kind = (EngineKind(COST, SLOTS),), np.zeros(2, int)
    leased = LeasedSequences(np.zeros(SLOTS, int), np.full(SLOTS, 20_000.0), np.zeros(SLOTS))
    waiting = [batch_of([20_000, 19_000, *[300] * 30])]
    queues = planned_queues(waiting, kinds, kind, leased, np.full(2, -np.inf), 0.0)
    assert {1, 2} <= set(drained(queues, 1))


def test_an_elapsed_time_tells_tokens_up_to_the_predicted_ones() -> None:
    tokens = sampled_tokens(
        COST, np.asarray([0.0, 5.04, 1e6]), np.asarray([900.0, 0.0, 900.0]), np.asarray([1, 1, 1])
    )
    assert tokens.tolist() == pytest.approx([0.0, 0.0, 900.0])
    some = sampled_tokens(COST, np.asarray([1.0]), np.asarray([9000.0]), np.asarray([1]))
    assert 100 < some[0] < 200
