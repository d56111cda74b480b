"""Groups that are closed before all of their episodes have ended."""

from __future__ import annotations

import dataclasses

import pytest

from services.scheduler.ledger import phases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.state.mixture import issued_size_at
from services.scheduler.state.rules import Rules, Share
from services.scheduler.state.tickets import (
    Attempt,
    EpisodeEnding,
    EpisodeResult,
    Purpose,
    Ticket,
    TicketState,
    TicketVerdict,
)
from tests.support.ledger import Image, check_tables
from tests.unit.scheduler.ledger.test_groups import TRAIN_ONLY, OneWorker, rewards_of
from tests.unit.scheduler.ledger.test_matches import SELF_PLAY, Matches

LATE = dataclasses.replace(TRAIN_ONLY, min_group_size=2, close_groups=1)
EXTRA = dataclasses.replace(TRAIN_ONLY, group_size=3, extra_episodes=2)


def report_all(world: OneWorker, tickets: list[Ticket]) -> list[TicketVerdict]:
    return [world.report(ticket, reward) for ticket, reward in zip(tickets, rewards_of(tickets), strict=True)]


def bucket(world: OneWorker, name: str) -> list[int]:
    return [ticket.id for ticket in world.ledger.tables.tickets.values() if ticket.bucket == name]


def image_of(world: OneWorker) -> Image:
    image = Image()
    image.apply(world.ledger.tables.take_changes())
    return image


def test_a_group_is_closed_with_the_last_episode_that_it_is_trained_with() -> None:
    world = OneWorker(EXTRA)
    tickets = world.lease()
    first, second = tickets[:5], tickets[5:]
    report_all(world, [first[4], first[1]])
    assert world.counts() == {"leased": 8, "ready": 2}
    report_all(world, [first[2]])
    assert bucket(world, "dropped:closed_early") == [first[0].id, first[3].id]
    report_all(world, second[:3])
    batch = phases.next_batch(world.ledger, 0.0)
    trained = [first[1], first[2], first[4], *second[:3]]
    assert batch is not None and batch.tickets == [ticket.id for ticket in trained]
    committed = world.ledger.commit(batch.id, 2)
    assert committed is not None and len(committed.results) == 6
    assert world.counts() == {"trained": 6, "dropped:closed_early": 4}
    assert world.ledger.attempts.closed_early == 4
    check_tables(world.ledger.tables)


def test_episodes_that_no_worker_has_taken_are_closed_as_well() -> None:
    world = OneWorker(EXTRA)
    report_all(world, world.ledger.lease("w", 1, 3, 0.0))
    assert bucket(world, "dropped:closed_early") == [4, 5]
    assert [ticket.id for ticket in world.lease()] == [6, 7, 8, 9, 10]


def test_a_worker_learns_that_its_episode_was_closed() -> None:
    world = OneWorker(EXTRA)
    late, *others = world.lease()[:4]
    report_all(world, others)
    attempt = Attempt(late.id, late.attempt, late.fence)
    assert world.ledger.renew("w", 1, [attempt], 0.0) == [attempt]
    told = EpisodeResult(total_tokens=90, descriptor_key="k", oldest_version=1, newest_version=1)
    before = world.counts()
    answer = world.ledger.attempts.complete("w", 1, attempt, told)
    assert answer == (TicketVerdict.REFUSED, f"ticket {late.id} is dropped (closed_early)")
    assert world.counts() == before and "k" not in world.ledger.tables.freed


def test_extra_episodes_replace_those_that_fail() -> None:
    world = OneWorker(EXTRA)
    first, second, *others = world.lease()[:5]
    for ticket in (first, second):
        world.report(ticket, ending=EpisodeEnding.INFRA_ERROR)
    report_all(world, others)
    assert world.counts() == {"dropped:member_failed": 2, "ready": 3, "leased": 5}
    assert world.ledger.tables.whole[Purpose.TRAIN] == {others[0].group}


def test_without_enough_left_the_group_is_replaced() -> None:
    world = OneWorker(EXTRA)
    for ticket in world.lease()[:3]:
        world.report(ticket, ending=EpisodeEnding.INFRA_ERROR)
    dropped = {"dropped:member_failed": 2, "dropped:group_incomplete": 3}
    assert world.counts() == {**dropped, "pending": 5, "leased": 5}


def test_a_trajectory_that_is_lost_from_a_closed_group_is_played_again() -> None:
    world = OneWorker(dataclasses.replace(EXTRA, attempts=2))
    tickets = world.lease()
    report_all(world, [*tickets[:3], *tickets[5:8]])
    world.ledger.lose(tickets[0].id, 1)
    assert phases.next_batch(world.ledger, 0.0) is None
    [again] = world.lease()
    assert again.id == tickets[0].id and report_all(world, [again]) == [TicketVerdict.ACCEPTED]
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and len(batch.tickets) == 6


def test_a_group_that_is_closed_without_signal_is_replaced() -> None:
    world = OneWorker(dataclasses.replace(EXTRA, resample=1))
    for ticket in world.lease()[:3]:
        world.report(ticket, reward=1.0)
    assert world.counts() == {"dropped:closed_early": 2, "dropped:no_signal": 3, "leased": 5, "pending": 5}


def test_matches_are_closed_whole() -> None:
    world = Matches(dataclasses.replace(SELF_PLAY, extra_episodes=1))
    first, second, third, *_ = world.matches()
    world.play(third, 1.0, -1.0)
    assert world.counts() == {"leased": 10, "ready": 2}
    world.play(first, -1.0, 1.0)
    assert bucket(world, "dropped:closed_early") == [ticket.id for ticket in second]


def test_what_is_closed_stays_so_for_a_scheduler_that_starts_again() -> None:
    world = OneWorker(EXTRA)
    late, *others = world.lease()[:4]
    report_all(world, others)
    again = Ledger.restored(world.ledger.rules, image_of(world).load(), 0.0)
    check_tables(again.tables)
    assert again.tables.tickets == world.ledger.tables.tickets
    assert again.tables.tickets[late.id].bucket == "dropped:closed_early"
    attempt = Attempt(late.id, late.attempt, late.fence)
    assert again.attempts.complete("w", 1, attempt, EpisodeResult())[0] is TicketVerdict.REFUSED


def test_only_training_has_extra_episodes() -> None:
    rules = dataclasses.replace(EXTRA, warmup_batches=1, warmup_episodes=3, evaluation_episodes=4)
    assert [issued_size_at(rules, purpose, 0) for purpose in (Purpose.WARMUP, Purpose.EVALUATE)] == [1, 1]
    world = OneWorker(rules)
    tickets = world.lease()
    assert len(tickets) == 3 and {ticket.purpose for ticket in tickets} == {Purpose.WARMUP}
    for ticket in tickets:
        world.report(ticket)
    assert world.counts()["ready"] == 3 and not bucket(world, "dropped:closed_early")


def test_each_environment_of_a_mixture_has_its_own_size() -> None:
    mixture = (Share("a", 0.5, 2), Share("b", 0.5, 3, seats=2))
    rules = dataclasses.replace(EXTRA, mixture=mixture, batch_groups=8)
    tickets = OneWorker(rules).ledger.tables.tickets.values()
    sizes: dict[int, list[str]] = {}
    for ticket in tickets:
        sizes.setdefault(ticket.group, []).append(ticket.environment)
    assert {tuple(labels) for labels in sizes.values()} == {("a",) * 4, ("b",) * 10}


def test_the_last_group_of_a_batch_is_closed_when_the_trainer_asks() -> None:
    world = OneWorker(LATE)
    tickets = world.lease()
    report_all(world, [*tickets[:4], tickets[5], tickets[7]])
    assert world.counts() == {"leased": 2, "ready": 6}
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and batch.tickets == [1, 2, 3, 4, 6, 8]
    assert world.counts() == {"planned": 6, "dropped:closed_early": 2}
    world.ledger.commit(batch.id, 2)
    world.advance()
    assert len(world.lease()) == 8


def test_more_groups_than_the_key_says_are_waited_for() -> None:
    world = OneWorker(LATE)
    tickets = world.lease()
    report_all(world, [*tickets[:3], *tickets[4:7]])
    assert phases.next_batch(world.ledger, 0.0) is None
    assert world.counts() == {"leased": 2, "ready": 6}


def test_a_group_with_fewer_than_min_group_size_is_waited_for() -> None:
    world = OneWorker(LATE)
    tickets = world.lease()
    report_all(world, tickets[:5])
    assert phases.next_batch(world.ledger, 0.0) is None
    assert world.counts() == {"leased": 3, "ready": 5}


def test_no_group_is_closed_while_enough_others_are_complete() -> None:
    world = OneWorker(dataclasses.replace(LATE, staleness=1))
    tickets = world.lease()
    report_all(world, [*tickets[:3], *tickets[8:16]])
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and batch.tickets == [ticket.id for ticket in tickets[8:16]]
    assert world.counts() == {"planned": 8, "ready": 3, "leased": 5}
    world.ledger.commit(batch.id, 2)
    world.advance()
    report_all(world, [*tickets[4:8], *world.lease()])
    # Two later groups are complete, but this is the last batch that may take the first one.
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and batch.tickets == [1, 2, 3, 5, 6, 7, 8]
    assert bucket(world, "dropped:closed_early") == [4]


def test_of_groups_that_may_all_be_trained_later_the_fullest_is_closed() -> None:
    world = OneWorker(dataclasses.replace(LATE, staleness=1))
    tickets = world.lease()
    report_all(world, [*tickets[:2], *tickets[4:7], *tickets[8:12]])
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and batch.tickets == [ticket.id for ticket in [*tickets[4:7], *tickets[8:12]]]
    assert bucket(world, "dropped:closed_early") == [tickets[7].id]


def test_one_group_is_closed_for_a_batch_while_its_columns_are_read() -> None:
    held_back: set[int] = set()
    rules = dataclasses.replace(LATE, staleness=1)
    world = OneWorker(rules)
    world.ledger = Ledger.restored(rules, image_of(world).load(), 0.0, held_back)
    tickets = world.lease()
    report_all(world, [*tickets[:2], *tickets[4:8], *tickets[8:10], *tickets[12:14]])
    groups = {ticket.id: ticket.group for ticket in tickets}
    held_back.update(groups.values())
    held_back.discard(groups[tickets[0].id])
    # The second group is complete and not read yet: one closed group is enough for the batch with it.
    for _ in range(3):
        assert phases.next_batch(world.ledger, 0.0) is None
    assert bucket(world, "dropped:closed_early") == []
    held_back.discard(groups[tickets[4].id])
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and batch.tickets == [ticket.id for ticket in [*tickets[:2], *tickets[4:8]]]
    assert bucket(world, "dropped:closed_early") == [ticket.id for ticket in tickets[2:4]]


def test_nothing_is_closed_for_a_batch_that_waits_for_columns() -> None:
    held_back = {1}
    world = OneWorker(LATE)
    world.ledger = Ledger.restored(LATE, image_of(world).load(), 0.0, held_back)
    tickets = world.lease()
    report_all(world, tickets[:6])
    assert phases.next_batch(world.ledger, 0.0) is None
    assert world.counts() == {"leased": 2, "ready": 6}
    held_back.clear()
    held_back.add(2)  # not read by the reference stage yet
    assert phases.next_batch(world.ledger, 0.0) is None
    assert world.counts() == {"leased": 2, "ready": 6}
    held_back.clear()
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and batch.tickets == [1, 2, 3, 4, 5, 6]


def test_a_late_group_without_a_signal_is_waited_for() -> None:
    """Episodes that it lacks may give the signal without which it would be replaced."""
    world = OneWorker(dataclasses.replace(LATE, resample=1))
    tickets = world.lease()
    report_all(world, tickets[:4])
    for ticket in tickets[4:6]:
        world.report(ticket, reward=1.0)
    assert phases.next_batch(world.ledger, 0.0) is None
    assert world.counts() == {"leased": 2, "ready": 6}
    world.report(tickets[6], reward=0.0)
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and batch.tickets == [ticket.id for ticket in tickets[:7]]


@pytest.mark.parametrize("rules", [TRAIN_ONLY, SELF_PLAY])
def test_a_run_without_the_keys_closes_nothing(rules: Rules) -> None:
    world = Matches(rules) if rules is SELF_PLAY else OneWorker(rules)
    states = {ticket.state for ticket in world.lease()}
    assert states == {TicketState.LEASED} and len(world.ledger.tables.tickets) == 8


@pytest.mark.parametrize("extra", [0, 1, 3])
def test_a_run_that_is_resumed_with_other_extra_episodes_trains_groups_of_the_same_size(extra: int) -> None:
    world = OneWorker(EXTRA)
    tickets = world.lease()
    first, second = tickets[:5], tickets[5:]
    report_all(world, [first[4], first[1]])
    rules = dataclasses.replace(EXTRA, extra_episodes=extra)
    world.ledger = Ledger.restored(rules, image_of(world).load(), 0.0)
    phases.resume(world.ledger, 0.0)
    report_all(world, [first[2]])
    assert set(bucket(world, "dropped:closed_early")) == {first[0].id, first[3].id}
    report_all(world, second[:3])
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and len(batch.tickets) == 6


def test_a_group_that_has_enough_once_it_is_smaller_is_closed_as_the_run_resumes() -> None:
    larger = dataclasses.replace(EXTRA, group_size=4, extra_episodes=1)
    world = OneWorker(larger)
    tickets = world.lease()
    report_all(world, tickets[:3])
    world.ledger = Ledger.restored(EXTRA, image_of(world).load(), 0.0)
    phases.resume(world.ledger, 0.0)
    assert set(bucket(world, "dropped:closed_early")) == {ticket.id for ticket in tickets[3:5]}
    check_tables(world.ledger.tables)
