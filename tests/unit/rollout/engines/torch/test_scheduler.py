"""Scheduling of sequences over KV slots, against a plain model of what must hold."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.rollout.engines.contract.engine import GenerateRequest
from services.rollout.engines.contract.stop_texts import StopTexts
from services.rollout.engines.torch.batch import StepBatch
from services.rollout.engines.torch.scheduler import SequenceScheduler
from services.rollout.engines.torch.waiting_request import WaitingRequest

ages = itertools.count()


def ask(name: str, ids: list[int], new: int = 4, **fields) -> WaitingRequest:
    request = GenerateRequest(request_id=name, ids=ids, max_new_tokens=new, **fields)
    return WaitingRequest.of(request, next(ages))


def run_step(scheduler: SequenceScheduler, budget: int, version: int = 0) -> tuple[StepBatch, np.ndarray]:
    """One step whose sampled token is the sequence's length, so that it is known."""
    planned = scheduler.schedule(budget)
    assert planned is not None
    batch, complete = planned
    ids = scheduler.table.length[batch.slots[complete]]
    scheduler.advance(batch, complete, ids, np.zeros(len(ids)), version)
    return batch, complete


def test_prefill_then_decode():
    scheduler = SequenceScheduler(4, 32, (5,))
    assert scheduler.schedule(100) is None
    slot = scheduler.admit(ask("a", [7, 8, 9], stop_ids=[50]))
    assert slot == 0
    batch, complete = run_step(scheduler, 100)
    assert batch.tokens.tolist() == [7, 8, 9] and batch.starts.tolist() == [0] and complete.all()
    batch, complete = run_step(scheduler, 100, version=3)
    assert (batch.tokens.tolist(), batch.starts.tolist(), batch.counts.tolist()) == ([3], [3], [1])
    assert scheduler.table.versions[0, 3:5].tolist() == [0, 3]
    assert set(scheduler.table.stops.ids[0]) == {50, 5}
    batch, _ = scheduler.schedule(100) or (None, None)
    assert batch is not None
    _, _, stopped, full = scheduler.advance(batch, np.array([True]), np.array([5]), np.zeros(1), 3)
    assert stopped.all() and not full.any()


def test_a_long_prefill_does_not_hold_up_decoding():
    scheduler = SequenceScheduler(4, 64)
    scheduler.admit(ask("long", list(range(40))))
    scheduler.admit(ask("short", [1, 2]))
    batch, complete = run_step(scheduler, 10)
    assert batch.slots.tolist() == [1, 0] and batch.counts.tolist() == [2, 8]
    assert complete.tolist() == [True, False]
    batch, _ = run_step(scheduler, 10)
    assert batch.counts.tolist() == [1, 9] and batch.starts.tolist() == [2, 8]
    assert batch.tokens.tolist() == [2, *range(8, 17)]
    assert scheduler.table.length[0] == 40


def test_decoding_alone_may_exceed_the_budget():
    scheduler = SequenceScheduler(8, 16)
    for n in range(8):
        scheduler.admit(ask(str(n), [n]))
    batch, complete = run_step(scheduler, 3)
    assert len(batch.slots) == 8 and complete.all()


def test_the_oldest_idle_session_makes_room():
    scheduler = SequenceScheduler(2, 16)
    for name in ("a", "b"):
        slot = scheduler.admit(ask(name, [1, 2], session=name))
        assert slot is not None
        run_step(scheduler, 100)
        scheduler.finish(slot)
    assert scheduler.kv.idle == 2 and scheduler.admit(ask("a2", [1, 2, 2], session="a")) == 0
    assert scheduler.table.reused[0] == 2
    assert scheduler.admit(ask("c", [1, 2, 2])) == 1 and scheduler.table.reused[1] == 0
    assert scheduler.admit(ask("d", [1])) is None
    assert (scheduler.kv.evicted, scheduler.kv.idle) == (1, 0)


def turn(
    scheduler: SequenceScheduler, name: str, ids: list[int], *, now_ns: int, until_ns: int = 0
) -> int | None:
    """A turn of one token, from admission to its end: how many tokens of KV were there; None if it waits."""
    request = GenerateRequest(request_id=name, ids=ids, max_new_tokens=1, session=name)
    slot = scheduler.admit(WaitingRequest.of(request, scheduler.kv.ages.of(name)), now_ns)
    if slot is None:
        return None
    planned = scheduler.schedule(100, now_ns)
    assert planned is not None
    scheduler.advance(*planned, np.array([len(ids)]), np.zeros(1), 0)
    scheduler.finish(slot, until_ns)
    return int(scheduler.table.reused[slot])


@pytest.mark.parametrize("scarce", ["slots", "memory"])
def test_a_younger_session_takes_an_older_ones_kv_only_once_it_waited_long_enough(scarce):
    scheduler = SequenceScheduler(1, 16) if scarce == "slots" else SequenceScheduler(3, 16, kv_tokens=5)
    assert turn(scheduler, "old", [1, 2, 3], now_ns=0, until_ns=10) == 0
    assert turn(scheduler, "new", [5, 6, 7], now_ns=9) is None
    # The older one takes a younger one's at once; its own is still there.
    assert turn(scheduler, "old", [1, 2, 3, 3], now_ns=9, until_ns=10) == 3
    assert turn(scheduler, "new", [5, 6, 7], now_ns=10, until_ns=99) == 0
    assert turn(scheduler, "old", [1, 2, 3, 3, 4], now_ns=11, until_ns=99) == 0
    assert scheduler.kv.evicted == 2
    # One that is over is in nobody's way.
    scheduler.release("old")
    assert turn(scheduler, "new", [5, 6, 7, 3], now_ns=12) == 0


def lost_between_turns(waits_ns: int) -> int:
    """KV that was lost while ten sessions of eight turns share memory for two of them and a bit."""
    scheduler, lost, now_ns = SequenceScheduler(10, 64, kv_tokens=40), 0, 0
    contexts = {f"s{n}": [n, n] for n in range(10)}
    due = list(contexts)
    while due:
        now_ns += 1
        assert now_ns < 1000
        name = due.pop(0)
        ids = contexts[name]
        reused = turn(scheduler, name, ids, now_ns=now_ns, until_ns=now_ns + waits_ns)
        if reused is None:
            due.append(name)
            continue
        lost += max(0, len(ids) - 2 - reused)
        contexts[name] = [*ids, len(ids), 7]
        if len(ids) < 16:
            due.append(name)
        else:
            scheduler.release(name)
    return lost


def test_sessions_that_share_too_little_memory_lose_little_of_it():
    assert lost_between_turns(50) * 4 < lost_between_turns(0)


def test_the_youngest_that_runs_gives_way_to_an_idle_older_session():
    scheduler = SequenceScheduler(3, 64, kv_tokens=10)
    assert turn(scheduler, "old", [1, 2, 3], now_ns=0, until_ns=10) == 0
    for name in ("a", "b"):
        request = GenerateRequest(request_id=name, ids=[8, 9], max_new_tokens=9, session=name)
        assert scheduler.admit(WaitingRequest.of(request, scheduler.kv.ages.of(name)), 1) is not None
    for _ in range(3):
        planned = scheduler.schedule(100, 1)
        assert planned is not None
        count = len(planned[0].slots)
        scheduler.advance(*planned, np.zeros(count, np.int64), np.zeros(count), 0)
    assert [waiting.request.request_id for waiting in scheduler.waiting] == ["b"] and scheduler.kv.idle == 1
    # Alone, it does not wait for anybody.
    for _ in range(4):
        planned = scheduler.schedule(100, 1)
        assert planned is not None
        scheduler.advance(*planned, np.zeros(1, np.int64), np.zeros(1), 0)
    assert scheduler.kv.idle == 0 and scheduler.kv.evicted == 1


def test_a_session_that_is_busy_or_released_is_not_kept_twice():
    scheduler = SequenceScheduler(3, 16)
    scheduler.admit(ask("a", [1], session="s"))
    second = scheduler.admit(ask("b", [1], session="s"))
    assert second == 1 and scheduler.table.session[1] == ""
    scheduler.finish(1)
    assert scheduler.kv.idle == 0
    scheduler.release("s")
    scheduler.finish(0)
    assert scheduler.kv.idle == 0 and scheduler.table.used_tokens() == 0
    assert [scheduler.admit(ask(str(n), [1])) for n in range(3)] == [0, 1, 2]


def test_dropped_kv_is_computed_again():
    scheduler = SequenceScheduler(2, 16)
    scheduler.admit(ask("a", [1, 2, 3]))
    run_step(scheduler, 100)
    scheduler.kv.drop_all()
    batch, complete = run_step(scheduler, 100)
    assert batch.tokens.tolist() == [1, 2, 3, 3] and complete.all() and scheduler.table.length[0] == 5


def test_batches_travel_as_bytes():
    columns = ([3, 1], [0, 5], [2, 1], [1, 0], [8, 9, 7])
    batch = StepBatch(*map(np.array, columns))
    again = StepBatch.from_bytes(batch.to_bytes())
    for name in ("slots", "starts", "counts", "drafts", "tokens"):
        assert getattr(again, name).tolist() == getattr(batch, name).tolist()


@settings(max_examples=60)
@given(st.data())
def test_every_token_is_computed_exactly_once_in_order(data):
    scheduler = SequenceScheduler(3, 24)
    budget = data.draw(st.integers(1, 12))
    known: dict[int, list[int]] = {}
    names = iter(range(1000))
    for _ in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(["admit", "step", "step", "finish", "drop"]))
        running = list(scheduler.table.slot_of.values())
        if action == "admit":
            ids = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
            session = data.draw(st.sampled_from(["", "s", "t"]))
            slot = scheduler.admit(ask(str(next(names)), ids, 12, session=session))
            assert (slot is None) == (len(running) == 3)
            if slot is not None:
                reused = int(scheduler.table.reused[slot])
                assert reused < len(ids) and known.get(slot, [])[:reused] == ids[:reused]
                known[slot] = ids[:reused]
        elif action == "step" and running:
            planned = scheduler.schedule(budget)
            assert planned is not None
            batch, complete = planned
            at = 0
            for slot, start, count in zip(batch.slots, batch.starts, batch.counts, strict=True):
                assert len(known[slot]) == start and count > 0
                known[slot] = known[slot] + batch.tokens[at : at + count].tolist()
                at += count
                assert known[slot] == scheduler.table.tokens[slot, : start + count].tolist()
            prefilling = batch.counts[batch.counts > 1].sum()
            assert prefilling <= budget
            ids = np.full(int(complete.sum()), 2)
            done, _, _, full = scheduler.advance(batch, complete, ids, np.zeros(len(ids)), 0)
            for slot in done[full]:
                scheduler.finish(int(slot))
        elif action == "finish" and running:
            scheduler.finish(data.draw(st.sampled_from(running)))
        elif action == "drop":
            scheduler.kv.drop_all()
            known = {slot: [] for slot in known}
        table = scheduler.table
        live = table.running_slots()
        assert (table.cached[live] < table.length[live]).all() and (table.length <= 24).all()
        assert len(table.slot_of) + scheduler.kv.idle <= 3


def test_every_request_ends():
    scheduler = SequenceScheduler(2, 16)
    for n in range(2):
        scheduler.admit(ask(str(n), [1, 2], 3))
    finished = []
    for _ in range(3):
        planned = scheduler.schedule(100)
        assert planned is not None
        ids = np.zeros(2, dtype=np.int64)
        done, _, _, full = scheduler.advance(*planned, ids, np.zeros(2), 0)
        finished += done[full].tolist()
    assert finished == [0, 1]


@pytest.mark.parametrize("count", [1, 5])
def test_stop_lists_grow(count):
    scheduler = SequenceScheduler(2, 16, (9,))
    scheduler.admit(ask("a", [1], stop_ids=list(range(count))))
    scheduler.admit(ask("b", [1], stop_ids=[3]))
    assert set(scheduler.table.stops.ids[0]) - {-1} == {*range(count), 9}
    assert set(scheduler.table.stops.ids[1]) - {-1} == {3, 9}


def test_a_text_ends_the_answer_that_has_it_and_not_the_prompt():
    """A preempted sequence, and one that another engine began, continue with the text that they had."""
    stops = StopTexts(["xy"], lambda ids: "".join("xy."[token] for token in ids))
    scheduler = SequenceScheduler(3, 16, stop_texts=stops)
    scheduler.admit(ask("begun", [2, 0], answered=1))
    scheduler.admit(ask("prompt", [2, 0]))
    scheduler.admit(ask("both", [2]))

    def step(*ids: int) -> list[bool]:
        planned = scheduler.schedule(100)
        assert planned is not None
        batch, complete = planned
        order = np.argsort(batch.slots)
        chosen = np.array(ids)[batch.slots]
        _, added, stopped, _ = scheduler.advance(batch, complete, chosen, np.zeros(3), 0)
        assert added.tolist() == [1, 1, 1]
        return stopped[order].tolist()

    # A step in which no sequence is complete.
    none = np.zeros(0, dtype=np.int64)
    assert not scheduler.table.append(none, none, none, none, 0)[1].any()
    assert step(1, 1, 0) == [True, False, False]
    scheduler.finish(0)
    scheduler._preempt(2)
    scheduler.admit(ask("other", [2]))
    scheduler.admit(scheduler.waiting.pop())
    slots = scheduler.table.slot_of
    expected = {slots["prompt"]: False, slots["other"]: False, slots["both"]: True}
    assert step(1, 1, 1) == [expected[slot] for slot in range(3)]
