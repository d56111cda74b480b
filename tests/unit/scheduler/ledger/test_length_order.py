"""Longest predicted tickets first: their order, what it never changes, and what a restart knows."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.stack.task_sets import task_sets_of
from earl.ticket_ranges import RangeSet
from services.scheduler.ledger import lengths, phases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.pending import PendingTickets
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.state.rules import Rules, Share, rules_of
from services.scheduler.state.seeds import derive
from services.scheduler.state.tickets import Attempt, EpisodeResult, Purpose, Ticket, TicketState
from services.scheduler.state.workers import WorkerRecord
from tests.support.ledger import RULES, Image, World
from tests.support.runs import tictactoe
from tests.unit.scheduler.ledger.test_exact_schedule import EXACT, ExactWorld, undisturbed

TASKS = tuple(range(8))
# Every task once an epoch, and an epoch is two batches.
LONGEST = dataclasses.replace(
    RULES, warmup_batches=0, steps=8, batch_groups=4, evaluate_every_steps=0, staleness=1,
    longest_first=True, mixture=(Share(train=TASKS, held_out=(8, 9, 10)),),
)  # fmt: skip


def ticket(
    number: int, place: int, predicted: int, purpose: Purpose = Purpose.TRAIN, attempt: int = 0
) -> Ticket:
    return Ticket(
        id=number, group=place, purpose=purpose, index=place, env_seed=1, sample_seed=1, min_version=1,
        temperature=1.0, predicted_tokens=predicted, attempt=attempt,
    )  # fmt: skip


def order_of(pending: PendingTickets) -> list[int]:
    """Takes everything out."""
    numbers = []
    for first in pending.deal(1 << 20):
        pending.remove(first)
        numbers.append(first.id)
    assert len(pending) == 0
    return numbers


def expected_order(tickets: Iterable[Ticket], batch_groups: int) -> list[int]:
    """The order that the module's docstring describes, found by comparing all with all."""
    waiting, numbers = list(tickets), []
    while waiting:
        head = min(waiting, key=lambda each: (each.attempt == 0, each.id))
        batch = [head]
        if batch_groups and head.purpose is Purpose.TRAIN and not head.attempt:
            place = head.index // batch_groups
            batch = [
                each
                for each in waiting
                if each.purpose is Purpose.TRAIN and not each.attempt and each.index // batch_groups == place
            ]
        first = min(batch, key=lambda each: (-each.predicted_tokens, each.id))
        waiting.remove(first)
        numbers.append(first.id)
    return numbers


tickets = st.builds(
    ticket,
    st.integers(1, 40),
    st.integers(0, 7),
    st.integers(0, 3),
    st.sampled_from(Purpose),
    st.integers(0, 1),
)


@given(st.lists(tickets, max_size=24, unique_by=lambda each: each.id), st.integers(0, 3), st.randoms())
@settings(max_examples=30)
def test_the_order_is_a_function_of_the_tickets_that_wait(
    waiting: list[Ticket], batch_groups: int, draw: random.Random
) -> None:
    pending = PendingTickets(batch_groups)
    kept = []
    for each in draw.sample(waiting, len(waiting)):
        pending.add(each)
        if draw.random() < 0.3:
            pending.remove(each)
            if draw.random() < 0.5:
                again = ticket(each.id, each.index, each.predicted_tokens, each.purpose, each.attempt + 1)
                pending.add(again)
                kept.append(again)
        else:
            kept.append(each)
    assert order_of(pending) == expected_order(kept, batch_groups)


def test_without_the_key_tickets_are_leased_as_they_were_drawn() -> None:
    pending = PendingTickets()
    for number, predicted in ((1, 5), (2, 900), (3, 40)):
        pending.add(ticket(number, number, predicted))
    assert order_of(pending) == [1, 2, 3]


def test_an_evaluation_keeps_its_turn_and_what_is_tried_again_comes_first() -> None:
    pending = PendingTickets(batch_groups=2)
    pending.add(ticket(1, 0, 10))
    pending.add(ticket(2, 1, 90))
    pending.add(ticket(3, 0, 0, Purpose.EVALUATE))
    pending.add(ticket(4, 2, 900))
    pending.add(ticket(5, 3, 950))
    pending.add(ticket(6, 0, 0, Purpose.TRAIN, attempt=1))
    assert order_of(pending) == [6, 2, 1, 3, 5, 4]


def dealt(pending: PendingTickets, credit: int, share: float) -> list[int]:
    """The numbers that one worker takes out in one call."""
    numbers = []
    for each in pending.deal(credit, lambda: share):
        numbers.append(each.id)
        for number in each.match:
            pending.remove(pending._tickets[number])
    return numbers


def longest_of(count: int) -> PendingTickets:
    """A batch of tickets of which the first is the longest, the second the next, and so on."""
    pending = PendingTickets(batch_groups=count)
    for number in range(1, count + 1):
        pending.add(ticket(number, number - 1, 1000 - number))
    return pending


def test_workers_that_take_several_share_the_long_ones() -> None:
    pending = longest_of(16)
    assert dealt(pending, 4, 0.25) == [1, 5, 9, 13]
    assert dealt(pending, 4, 0.25) == [2, 6, 10, 14]
    assert dealt(pending, 4, 0.25) == [3, 7, 11, 15]
    assert dealt(pending, 4, 0.25) == [4, 8, 12, 16]


def test_where_fewer_wait_than_there_is_room_for_all_get_taken() -> None:
    pending = longest_of(6)
    assert dealt(pending, 4, 0.25) == [1, 2, 4, 5]
    assert dealt(pending, 4, 0.25) == [3, 6]


def test_where_all_are_alike_groups_stay_together() -> None:
    pending = PendingTickets(batch_groups=2)
    for number in range(1, 9):
        pending.add(ticket(number, (number - 1) // 4, 70))
    assert dealt(pending, 4, 0.25) == [1, 2, 3, 4]
    pending.add(ticket(9, 1, 71))
    assert dealt(pending, 2, 0.25) == [9, 6]


def test_whole_groups_are_shared_where_there_is_room_for_them() -> None:
    pending = PendingTickets(batch_groups=16)
    for number in range(1, 33):
        pending.add(ticket(number, (number - 1) // 2, 1000 - (number - 1) // 2))
    assert dealt(pending, 8, 0.25) == [1, 2, 9, 10, 17, 18, 25, 26]
    # Of fewer than four groups each ticket has a worker of its own, and what is left of a group stays so.
    assert dealt(pending, 2, 0.25) == [3, 7]
    assert dealt(pending, 8, 0.5) == [4, 5, 6, 13, 14, 19, 20, 23]


def test_matches_of_several_seats_are_shared_as_episodes() -> None:
    pending = PendingTickets(batch_groups=8)
    for number in range(1, 17):
        match = (number - 1) // 2
        seat = ticket(number, match, 1000 - match)
        pending.add(msgspec.structs.replace(seat, seat=(number - 1) % 2, seats=2))
    assert dealt(pending, 2, 0.25) == [1, 9]
    assert dealt(pending, 2, 0.25) == [3, 11]


def test_lengths_are_recorded_where_groups_may_differ_in_them(tmp_path: Path) -> None:
    def longest_first(set_of_tasks: bool, **scheduler: str) -> bool:
        config = tictactoe(tmp_path, environment={"instances": 8 if set_of_tasks else 0}, scheduler=scheduler)
        return rules_of(config, task_sets_of(config, tmp_path)).longest_first

    assert longest_first(True) and not longest_first(True, length_order="drawn")
    assert not longest_first(False), "no task comes again, and there is one environment"


def test_one_that_takes_a_single_ticket_gets_the_longest() -> None:
    pending = longest_of(5)
    assert [dealt(pending, 1, 0.01) for _ in range(3)] == [[1], [2], [3]]
    assert dealt(pending, 5, 1.0) == [4, 5]


calls_of_workers = st.lists(st.tuples(st.integers(1, 9), st.floats(0.01, 1.0)), min_size=1, max_size=12)


@given(calls_of_workers, st.integers(1, 40))
@settings(max_examples=30)
def test_nothing_is_left_or_taken_twice_however_it_is_dealt(
    calls: list[tuple[int, float]], count: int
) -> None:
    pending = longest_of(count)
    taken: list[int] = []
    for credit, share in calls:
        numbers = dealt(pending, credit, share)
        assert len(numbers) == min(credit, count - len(taken))
        assert numbers == sorted(numbers)
        taken += numbers
    assert len(set(taken)) == len(taken) and len(pending) == count - len(taken)


def response_of(played: Ticket) -> tuple[int, int]:
    """(prompt, response) in tokens of an episode."""
    return 10 + played.task, 20 * (1 + played.task * 7 % 8) + derive(played.sample_seed, 1) % 3


def begun(rules: Rules = LONGEST) -> Ledger:
    ledger = Ledger(dataclasses.replace(rules, evaluation_episodes=0))
    ledger.membership.join(WorkerRecord(name="t", incarnation=1), 0.0)
    ledger.membership.join(WorkerRecord(name="w", incarnation=1), 0.0)
    reconcile(ledger, "t", 1, 1, 1, RangeSet())
    phases.advance(ledger, 0.0)
    return ledger


def play(ledger: Ledger, count: int = 1000) -> list[Ticket]:
    """Plays up to `count` of what waits; the tickets in the order in which they were leased."""
    ledger.membership.mark_alive("w", 1, 0.0, ledger.tables.run.version)
    leased = ledger.lease("w", 1, count, 0.0)
    for each in leased:
        prompt, response = response_of(each)
        version = ledger.tables.run.version
        result = EpisodeResult(
            reward=float(each.id % 2), prompt_tokens=prompt, total_tokens=prompt + response, trained_tokens=1,
            oldest_version=version, newest_version=version, descriptor_key=f"k{each.id}",
        )  # fmt: skip
        ledger.attempts.complete("w", 1, Attempt(each.id, each.attempt, each.fence), result)
    return leased


def train(ledger: Ledger) -> None:
    batch = phases.next_batch(ledger, 0.0)
    assert batch is not None
    ledger.commit(batch.id, batch.version + 1)
    phases.advance(ledger, 0.0)


def tasks_of(leased: list[Ticket]) -> list[int]:
    """Tasks in the order in which their groups were leased, members of a group one after another."""
    tasks = [each.task for each in leased[::2]]
    assert [each.task for each in leased[1::2]] == tasks
    return tasks


def test_of_tasks_that_were_trained_the_longest_of_each_batch_are_first() -> None:
    ledger = begun()
    leased = play(ledger)
    # Nothing was trained before the first two batches were issued.
    assert tasks_of(leased) == [each.task for each in sorted(leased, key=lambda each: each.id)[::2]]
    leased = []
    for _ in range(LONGEST.steps):
        train(ledger)
        leased += play(ledger)
    batches = [each.index // 4 for each in leased]
    assert batches == sorted(batches)
    for batch in range(3, LONGEST.steps):  # the third was issued when one half of the tasks was trained
        tasks = tasks_of([each for each in leased if each.index // 4 == batch])
        assert tasks == sorted(tasks, key=lambda task: -(task * 7 % 8)) and len(tasks) == 4
    # Lengths of a task differ by 2 tokens at most, but the first groups were predicted by environment.
    assert 1.0 < ledger.lengths.figures["length_prediction_factor"] < 1.5
    assert 0.5 < ledger.lengths.figures["length_prediction_covered"] <= 1.0


def test_without_the_key_nothing_is_recorded_or_predicted() -> None:
    ledger = begun(dataclasses.replace(LONGEST, longest_first=False))
    for _ in range(4):
        play(ledger)
        train(ledger)
    assert not ledger.tables.lengths and not ledger.lengths.figures
    assert not any(each.predicted_tokens for each in ledger.tables.tickets.values())


def drawn(ledger: Ledger, steps: int) -> list[tuple[int, ...]]:
    """The tickets of each batch, by their numbers."""
    batches = []
    for _ in range(steps):
        play(ledger)
        batch = phases.next_batch(ledger, 0.0)
        assert batch is not None
        batches.append(tuple(batch.tickets))
        ledger.commit(batch.id, batch.version + 1)
        phases.advance(ledger, 0.0)
    return batches


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_order_changes_neither_draws_nor_batches(staleness: int) -> None:
    rules = dataclasses.replace(LONGEST, staleness=staleness)
    ledgers = [begun(dataclasses.replace(rules, longest_first=on)) for on in (False, True)]
    batches = [drawn(ledger, rules.steps) for ledger in ledgers]
    assert batches[0] == batches[1]
    kinds = [
        [
            (each.id, each.env_seed, each.sample_seed, each.task, each.min_version)
            for each in tickets_of(ledger)
        ]
        for ledger in ledgers
    ]
    assert kinds[0] == kinds[1]


def tickets_of(ledger: Ledger) -> list[Ticket]:
    return sorted(ledger.tables.tickets.values(), key=lambda each: each.id)


def test_a_restarted_scheduler_predicts_and_leases_as_the_former_one() -> None:
    ledger, image = begun(), Image()
    for step in range(7):
        play(ledger, 3)
        image.apply(ledger.tables.take_changes())
        again = Ledger.restored(ledger.rules, image.peek(), 0.0)
        assert again.lengths.figures == ledger.lengths.figures
        assert [again.lengths.predict("", task) for task in TASKS] == [
            ledger.lengths.predict("", task) for task in TASKS
        ]
        former, later = (
            [each.id for each in one.lease("w", 1, 1000, 0.0)]
            for one in (Ledger.restored(ledger.rules, image.peek(), 0.0), again)
        )
        play(ledger)
        train(ledger)
        assert former == later and (step == 0 or former)


def test_a_checkpoint_that_is_restored_takes_lengths_back() -> None:
    ledger = begun()
    known = []
    for _ in range(4):
        play(ledger)
        known.append([ledger.lengths.predict("", task) for task in TASKS])
        train(ledger)
    assert known[0] != known[2] != known[3]
    consumed = RangeSet.of(
        each.id for each in tickets_of(ledger) if each.state is TicketState.TRAINED and each.index < 8
    )
    ledger.membership.join(WorkerRecord(name="t", incarnation=2), 0.0)
    reconcile(ledger, "t", 2, 3, 3, consumed)
    assert sorted(ledger.tables.lengths) == [0, 1]
    assert [ledger.lengths.predict("", task) for task in TASKS] == known[2]


def test_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "STORED_EPISODES", 20)
    ledger, image = begun(), Image()
    for _ in range(6):
        play(ledger)
        train(ledger)
        image.apply(ledger.tables.take_changes())
    assert sorted(ledger.tables.lengths) == [4, 5]
    again = Ledger.restored(ledger.rules, image.peek(), 0.0)
    assert again.tables.lengths == ledger.tables.lengths
    # Of the tasks of the forgotten batches the environment's lengths tell.
    assert all(again.lengths.predict("", task) > 0 for task in TASKS)


def predictions(world: World) -> set[int]:
    """The lengths that trained groups were predicted to have."""
    return {each.predicted for groups in world.ledger.tables.lengths.values() for each in groups}


def test_a_deterministic_run_trains_on_the_same_tickets_in_either_order() -> None:
    rules = dataclasses.replace(
        EXACT, longest_first=True, batch_groups=4, resample=1,
        mixture=(Share(train=tuple(range(12)), held_out=(12, 13)),),
    )  # fmt: skip
    expected = undisturbed(dataclasses.replace(rules, longest_first=False))
    for seed in range(3):
        world = ExactWorld(random.Random(seed), rules)
        world.crash_chance = 0.05
        world.restart()
        world.wander(80)
        world.finish()
        assert world.batches() == expected and len(predictions(world)) > 2


@pytest.mark.parametrize("staleness", [1, 3])
def test_no_order_makes_anything_staler(staleness: int) -> None:
    # The world compares each batch that is trained with the bound, and what is kept with what is stored.
    rules = dataclasses.replace(LONGEST, staleness=staleness, warmup_batches=1, evaluate_every_steps=2)
    for seed in range(3):
        world = World(random.Random(seed), rules)
        world.crash_chance = 0.05
        world.restart()
        world.wander(80)
        world.finish()
        assert len(predictions(world)) > 2
