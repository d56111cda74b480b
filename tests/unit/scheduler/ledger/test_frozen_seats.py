"""Training against a frozen version: one ticket an episode, of a seat that alternates."""

from __future__ import annotations

import dataclasses

from earl.config.frozen_schedule import FrozenSchedule
from services.scheduler.batches.batch_plan import split_batch, summary
from services.scheduler.ledger import phases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.state.rules import Share
from services.scheduler.state.tickets import EpisodeEnding, Purpose, TicketState
from tests.support.ledger import Image, check_tables
from tests.unit.scheduler.ledger.test_groups import TRAIN_ONLY, OneWorker

CURRENT = dataclasses.replace(TRAIN_ONLY, group_size=4, mixture=(Share(seats=2),))
FROZEN = dataclasses.replace(CURRENT, mixture=(Share(seats=2, frozen=True),))


def test_a_group_has_a_ticket_for_each_episode_and_each_seat_in_turn() -> None:
    tickets = list(OneWorker(FROZEN).ledger.tables.tickets.values())
    assert [(each.group, each.seat, each.seats) for each in tickets] == [
        (group, seat, 2) for group in (1, 2) for seat in (0, 1, 0, 1)
    ]
    assert [list(each.match) for each in tickets[:3]] == [[1], [2], [3]]
    assert len({each.sample_seed for each in tickets}) == 8


def test_warm_up_has_all_seats_and_an_evaluation_one() -> None:
    rules = dataclasses.replace(FROZEN, warmup_batches=1, warmup_episodes=3, evaluation_episodes=4)
    world = OneWorker(rules)
    tickets = list(world.ledger.tables.tickets.values())
    assert [(each.purpose, each.seat, each.frozen) for each in tickets] == [
        (Purpose.WARMUP, seat, False) for _ in range(3) for seat in (0, 1)
    ]
    assert {each.match.start for each in tickets} == {1, 3, 5}


def test_tickets_end_alone_and_each_seat_is_compared_with_its_own() -> None:
    world = OneWorker(FROZEN)
    tickets = world.lease()
    for ticket, reward in zip(tickets, (1, 5, 0, 7, 1, 0, 1, 0), strict=True):
        world.report(ticket, reward)
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and len(batch.tickets) == 8
    plan = split_batch(batch, world.ledger.tables.tickets, 1, "mean")
    advantages = {item.ticket_id: item.advantage for item in plan.ranks[0]}
    assert [advantages[ticket.id] for ticket in tickets] == [0.5, -1, -0.5, 1, 0, 0, 0, 0]
    committed = world.ledger.commit(batch.id, 2)
    assert committed is not None
    figures = summary(committed)
    assert (figures["sequences"], figures["seats.0.reward_mean"], figures["seats.1.reward_mean"]) == (
        8,
        0.75,
        3,
    )
    check_tables(world.ledger.tables)


def test_an_episode_that_fails_leaves_the_others_of_its_group() -> None:
    world = OneWorker(dataclasses.replace(FROZEN, min_group_size=2))
    first, *others = world.lease()
    world.report(first, ending=EpisodeEnding.INFRA_ERROR)
    assert world.counts() == {"dropped:member_failed": 1, "leased": 7}
    for ticket in others:
        world.report(ticket, float(ticket.id))
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and len(batch.tickets) == 7


def test_the_opponent_follows_from_the_oldest_version_that_a_ticket_allows() -> None:
    schedule = FrozenSchedule(first=1, every=3, staleness=0)
    world = OneWorker(FROZEN)
    ticket = world.lease()[0]
    assert (ticket.min_version, ticket.opponent(schedule)) == (1, 1)
    world.ledger.tables.change(ticket, min_version=6)
    assert ticket.opponent(schedule) == 4
    assert ticket.opponent(None) == 0
    assert OneWorker(CURRENT).lease()[0].opponent(schedule) == 0


def test_tickets_outlive_the_scheduler() -> None:
    world, image = OneWorker(FROZEN), Image()
    world.report(world.lease()[0], 1.0)
    image.apply(world.ledger.tables.take_changes())
    again = Ledger.restored(FROZEN, image.load(), 0.0)
    assert again.tables.tickets == world.ledger.tables.tickets
    assert again.tables.counts() == {"leased": 7, "ready": 1}


def test_a_run_that_is_resumed_with_another_kind_of_opponent_issues_its_groups_again() -> None:
    for before, after in ((CURRENT, FROZEN), (FROZEN, CURRENT)):
        world, image = OneWorker(before), Image()
        image.apply(world.ledger.tables.take_changes())
        again = Ledger.restored(after, image.load(), 0.0)
        phases.resume(again, 0.0)
        phases.advance(again, 0.0)
        live = [each for each in again.tables.tickets.values() if each.state is TicketState.PENDING]
        assert {each.frozen for each in live} == {after is FROZEN}
        assert len(live) == 2 * 4 * (1 if after is FROZEN else 2)
        assert again.tables.counts()["dropped:opponent_changed"] == 2 * 4 * (1 if before is FROZEN else 2)
        check_tables(again.tables)


def test_a_run_that_is_resumed_as_it_was_keeps_its_groups() -> None:
    world, image = OneWorker(FROZEN), Image()
    image.apply(world.ledger.tables.take_changes())
    again = Ledger.restored(FROZEN, image.load(), 0.0)
    phases.resume(again, 0.0)
    assert again.tables.tickets == world.ledger.tables.tickets


def test_a_ticket_without_a_frozen_opponent_is_stored_as_before() -> None:
    image = Image()
    image.apply(OneWorker(CURRENT).ledger.tables.take_changes())
    assert not any(b"frozen" in data for data in image.records.values())
