"""Bookkeeping of KV slots, against a plain model of what must hold."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.rollout.engines.contract.engine import GenerateRequest
from services.rollout.engines.torch.batch import Batch
from services.rollout.engines.torch.slots import Slots
from services.rollout.engines.torch.waiting_request import Waiting

orders = itertools.count()


def ask(name: str, ids: list[int], new: int = 4, **fields) -> Waiting:
    request = GenerateRequest(request_id=name, ids=ids, max_new_tokens=new, **fields)
    return Waiting.of(request, next(orders))


def run_step(slots: Slots, budget: int, version: int = 0) -> tuple[Batch, np.ndarray]:
    """One step whose sampled token is the sequence's length, so that it is known."""
    planned = slots.plan(budget)
    assert planned is not None
    batch, complete = planned
    ids = slots.length[batch.slots[complete]]
    slots.advance(batch, complete, ids, np.zeros(len(ids)), version)
    return batch, complete


def test_prefill_then_decode():
    slots = Slots(4, 32)
    assert slots.plan(100) is None
    slot = slots.admit(ask("a", [7, 8, 9], stop_ids=[50]), (5,))
    assert slot == 0
    batch, complete = run_step(slots, 100)
    assert batch.tokens.tolist() == [7, 8, 9] and batch.starts.tolist() == [0] and complete.all()
    batch, complete = run_step(slots, 100, version=3)
    assert (batch.tokens.tolist(), batch.starts.tolist(), batch.counts.tolist()) == ([3], [3], [1])
    assert slots.versions[0, 3:5].tolist() == [0, 3]
    assert set(slots.stops.ids[0]) == {50, 5}
    batch, _ = slots.plan(100) or (None, None)
    assert batch is not None
    _, stopped, full = slots.advance(batch, np.array([True]), np.array([5]), np.zeros(1), 3)
    assert stopped.all() and not full.any()


def test_a_long_prefill_does_not_hold_up_decoding():
    slots = Slots(4, 64)
    slots.admit(ask("long", list(range(40))), ())
    slots.admit(ask("short", [1, 2]), ())
    batch, complete = run_step(slots, 10)
    assert batch.slots.tolist() == [1, 0] and batch.counts.tolist() == [2, 8]
    assert complete.tolist() == [True, False]
    batch, _ = run_step(slots, 10)
    assert batch.counts.tolist() == [1, 9] and batch.starts.tolist() == [2, 8]
    assert batch.tokens.tolist() == [2, *range(8, 17)]
    assert slots.length[0] == 40


def test_decoding_alone_may_exceed_the_budget():
    slots = Slots(8, 16)
    for n in range(8):
        slots.admit(ask(str(n), [n]), ())
    batch, complete = run_step(slots, 3)
    assert len(batch.slots) == 8 and complete.all()


def test_the_oldest_idle_session_makes_room():
    slots = Slots(2, 16)
    for name in ("a", "b"):
        slot = slots.admit(ask(name, [1, 2], session=name), ())
        assert slot is not None
        run_step(slots, 100)
        slots.finish(slot)
    assert slots.retained == 2 and slots.admit(ask("a2", [1, 2, 2], session="a"), ()) == 0
    assert slots.reused[0] == 2
    assert slots.admit(ask("c", [1, 2, 2]), ()) == 1 and slots.reused[1] == 0
    assert slots.admit(ask("d", [1]), ()) is None
    assert (slots.evicted, slots.retained) == (1, 0)


def turn(slots: Slots, name: str, ids: list[int], *, now_ns: int, until_ns: int = 0) -> int | None:
    """A turn of one token, from admission to its end: how many tokens of KV were there; None if it waits."""
    request = GenerateRequest(request_id=name, ids=ids, max_new_tokens=1, session=name)
    slot = slots.admit(Waiting.of(request, slots.ages.of(name)), (), now_ns)
    if slot is None:
        return None
    planned = slots.plan(100, now_ns)
    assert planned is not None
    slots.advance(*planned, np.array([len(ids)]), np.zeros(1), 0)
    slots.finish(slot, until_ns)
    return int(slots.reused[slot])


@pytest.mark.parametrize("scarce", ["slots", "memory"])
def test_a_younger_session_takes_an_older_ones_kv_only_once_it_waited_long_enough(scarce):
    slots = Slots(1, 16) if scarce == "slots" else Slots(3, 16, kv_tokens=5)
    assert turn(slots, "old", [1, 2, 3], now_ns=0, until_ns=10) == 0
    assert turn(slots, "new", [5, 6, 7], now_ns=9) is None
    # The older one takes a younger one's at once; its own is still there.
    assert turn(slots, "old", [1, 2, 3, 3], now_ns=9, until_ns=10) == 3
    assert turn(slots, "new", [5, 6, 7], now_ns=10, until_ns=99) == 0
    assert turn(slots, "old", [1, 2, 3, 3, 4], now_ns=11, until_ns=99) == 0
    assert slots.evicted == 2
    # One that is over is in nobody's way.
    slots.release("old")
    assert turn(slots, "new", [5, 6, 7, 3], now_ns=12) == 0


def lost_between_turns(waits_ns: int) -> int:
    """KV that was lost while ten sessions of eight turns share memory for two of them and a bit."""
    slots, lost, now_ns = Slots(10, 64, kv_tokens=40), 0, 0
    contexts = {f"s{n}": [n, n] for n in range(10)}
    due = list(contexts)
    while due:
        now_ns += 1
        assert now_ns < 1000
        name = due.pop(0)
        ids = contexts[name]
        reused = turn(slots, name, ids, now_ns=now_ns, until_ns=now_ns + waits_ns)
        if reused is None:
            due.append(name)
            continue
        lost += max(0, len(ids) - 2 - reused)
        contexts[name] = [*ids, len(ids), 7]
        if len(ids) < 16:
            due.append(name)
        else:
            slots.release(name)
    return lost


def test_sessions_that_share_too_little_memory_lose_little_of_it():
    assert lost_between_turns(50) * 4 < lost_between_turns(0)


def test_the_youngest_that_runs_gives_way_to_an_idle_older_session():
    slots = Slots(3, 64, kv_tokens=10)
    assert turn(slots, "old", [1, 2, 3], now_ns=0, until_ns=10) == 0
    for name in ("a", "b"):
        request = GenerateRequest(request_id=name, ids=[8, 9], max_new_tokens=9, session=name)
        assert slots.admit(Waiting.of(request, slots.ages.of(name)), (), 1) is not None
    for _ in range(3):
        planned = slots.plan(100, 1)
        assert planned is not None
        slots.advance(*planned, np.zeros(len(planned[0].slots), np.int64), np.zeros(len(planned[0].slots)), 0)
    assert [one.request.request_id for one in slots.preempted] == ["b"] and slots.retained == 1
    # Alone, it does not wait for anybody.
    for _ in range(4):
        planned = slots.plan(100, 1)
        assert planned is not None
        slots.advance(*planned, np.zeros(1, np.int64), np.zeros(1), 0)
    assert slots.retained == 0 and slots.evicted == 1


def test_a_session_that_is_busy_or_released_is_not_kept_twice():
    slots = Slots(3, 16)
    slots.admit(ask("a", [1], session="s"), ())
    second = slots.admit(ask("b", [1], session="s"), ())
    assert second == 1 and slots.session[1] == ""
    slots.finish(1)
    assert slots.retained == 0
    slots.release("s")
    slots.finish(0)
    assert slots.retained == 0 and slots.used_tokens() == 0
    assert [slots.admit(ask(str(n), [1]), ()) for n in range(3)] == [0, 1, 2]


def test_dropped_kv_is_computed_again():
    slots = Slots(2, 16)
    slots.admit(ask("a", [1, 2, 3]), ())
    run_step(slots, 100)
    slots.drop_kv()
    batch, complete = run_step(slots, 100)
    assert batch.tokens.tolist() == [1, 2, 3, 3] and complete.all() and slots.length[0] == 5


def test_batches_travel_as_bytes():
    batch = Batch(np.array([3, 1]), np.array([0, 5]), np.array([2, 1]), np.array([8, 9, 7]))
    again = Batch.from_bytes(batch.to_bytes())
    for name in ("slots", "starts", "counts", "tokens"):
        assert getattr(again, name).tolist() == getattr(batch, name).tolist()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_token_is_computed_exactly_once_in_order(data):
    slots = Slots(3, 24)
    budget = data.draw(st.integers(1, 12))
    known: dict[int, list[int]] = {}
    names = iter(range(1000))
    for _ in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(["admit", "step", "step", "finish", "drop"]))
        running = list(slots.slot_of.values())
        if action == "admit":
            ids = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
            session = data.draw(st.sampled_from(["", "s", "t"]))
            slot = slots.admit(ask(str(next(names)), ids, 12, session=session), ())
            assert (slot is None) == (len(running) == 3)
            if slot is not None:
                reused = int(slots.reused[slot])
                assert reused < len(ids) and known.get(slot, [])[:reused] == ids[:reused]
                known[slot] = ids[:reused]
        elif action == "step" and running:
            planned = slots.plan(budget)
            assert planned is not None
            batch, complete = planned
            at = 0
            for slot, start, count in zip(batch.slots, batch.starts, batch.counts, strict=True):
                assert len(known[slot]) == start and count > 0
                known[slot] = known[slot] + batch.tokens[at : at + count].tolist()
                at += count
                assert known[slot] == slots.tokens[slot, : start + count].tolist()
            prefilling = batch.counts[batch.counts > 1].sum()
            assert prefilling <= budget
            ids = np.full(int(complete.sum()), 2)
            done, _, full = slots.advance(batch, complete, ids, np.zeros(len(ids)), 0)
            for slot in done[full]:
                slots.finish(int(slot))
        elif action == "finish" and running:
            slots.finish(data.draw(st.sampled_from(running)))
        elif action == "drop":
            slots.drop_kv()
            known = {slot: [] for slot in known}
        live = np.flatnonzero(slots.running)
        assert (slots.cached[live] < slots.length[live]).all() and (slots.length <= 24).all()
        assert len(slots.slot_of) + slots.retained <= 3


def test_every_request_ends():
    slots = Slots(2, 16)
    for n in range(2):
        slots.admit(ask(str(n), [1, 2], 3), ())
    finished = []
    for _ in range(3):
        planned = slots.plan(100)
        assert planned is not None
        ids = np.zeros(2, dtype=np.int64)
        done, _, full = slots.advance(*planned, ids, np.zeros(2), 0)
        finished += done[full].tolist()
    assert finished == [0, 1]


@pytest.mark.parametrize("count", [1, 5])
def test_stop_lists_grow(count):
    slots = Slots(2, 16)
    slots.admit(ask("a", [1], stop_ids=list(range(count))), (9,))
    slots.admit(ask("b", [1], stop_ids=[3]), (9,))
    assert set(slots.stops.ids[0]) - {-1} == {*range(count), 9}
    assert set(slots.stops.ids[1]) - {-1} == {3, 9}
