"""Matches: episodes in which the policy has several seats, each with a ticket of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from services.scheduler.batches.batch_plan import split_batch, summary
from services.scheduler.ledger import phases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.state.facts import TrajectoryReady
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
from tests.support.ledger import RULES, Image, check_tables
from tests.unit.scheduler.ledger.test_groups import TRAIN_ONLY, OneWorker

SELF_PLAY = dataclasses.replace(TRAIN_ONLY, group_size=2, mixture=(Share(seats=2),))


class Matches(OneWorker):
    """One worker that reports whole matches."""

    def matches(self, credit: int = 100) -> list[list[Ticket]]:
        tickets = self.ledger.lease("w", 1, credit, 0.0)
        return [tickets[place : place + tickets[place].seats] for place in range(0, len(tickets), 2)]

    def reports(
        self, match: Sequence[Ticket], rewards: Sequence[float], ending: EpisodeEnding = EpisodeEnding.OK
    ) -> list[tuple[Attempt, EpisodeResult]]:
        version = self.ledger.tables.run.version
        return [
            (
                Attempt(ticket.id, ticket.attempt, ticket.fence),
                EpisodeResult(
                    ending=ending, reward=reward, total_tokens=9, trained_tokens=4, oldest_version=version,
                    newest_version=version, descriptor_key=f"k{ticket.id}", turns=3,
                ),
            )
            for ticket, reward in zip(match, rewards, strict=True)
        ]  # fmt: skip

    def play(
        self, match: Sequence[Ticket], *rewards: float, ending: EpisodeEnding = EpisodeEnding.OK
    ) -> TicketVerdict:
        (attempt, result), *others = self.reports(match, rewards, ending)
        verdict, _ = self.ledger.attempts.complete("w", 1, attempt, result, others)
        self.advance()
        return verdict


def issued(rules: Rules) -> list[tuple[int, int, int, int, int]]:
    tickets = Matches(rules).ledger.tables.tickets.values()
    return [(each.id, each.group, each.seat, each.env_seed, each.sample_seed) for each in tickets]


def test_a_group_has_a_ticket_for_each_seat_of_its_episodes() -> None:
    tables = Matches(SELF_PLAY).ledger.tables
    tickets = list(tables.tickets.values())
    assert [(each.group, each.seat, each.seats) for each in tickets] == [
        (group, seat, 2) for group in (1, 2) for _ in range(2) for seat in (0, 1)
    ]
    assert [list(each.match) for each in tickets[:4]] == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert len({each.sample_seed for each in tickets}) == 8
    assert len({each.env_seed for each in tickets}) == 2
    assert issued(SELF_PLAY) == issued(SELF_PLAY)


def test_a_seat_alone_has_the_tickets_that_it_had_before() -> None:
    assert issued(TRAIN_ONLY) == issued(dataclasses.replace(TRAIN_ONLY, mixture=(Share(seats=1),)))
    two = dataclasses.replace(SELF_PLAY, group_size=TRAIN_ONLY.group_size)
    assert [row[3] for row in issued(two)][::2] == [row[3] for row in issued(TRAIN_ONLY)]


def test_warm_up_plays_all_seats_and_an_evaluation_one() -> None:
    rules = dataclasses.replace(SELF_PLAY, warmup_batches=1, warmup_episodes=3, evaluation_episodes=4)
    world = Matches(rules)
    assert [ticket.seat for ticket in world.ledger.tables.tickets.values()] == [0, 1] * 3
    work = phases.work(world.ledger)
    assert work is not None and work.episodes == 3
    for match in world.matches():
        world.play(match, 1.0, -1.0)
    assert phases.episodes_played(world.ledger) == 3
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and len(batch.tickets) == 6
    work = phases.work(world.ledger)
    assert work is not None and work.episodes == 3
    world.ledger.commit(batch.id, 2)
    world.advance()
    judged = [each for each in world.ledger.tables.tickets.values() if each.purpose is Purpose.EVALUATE]
    assert len(judged) == 4 and {each.seats for each in judged} == {1}


def test_a_step_counts_its_matches_once() -> None:
    world = Matches(dataclasses.replace(SELF_PLAY, staleness=0))
    work = phases.work(world.ledger)
    assert work is not None and work.episodes == SELF_PLAY.group_size * SELF_PLAY.batch_groups
    match, other, *_ = world.matches()
    assert phases.episodes_played(world.ledger) == 0
    world.play(match, 1.0, -1.0)
    assert phases.episodes_played(world.ledger) == 1
    world.play(other, 1.0, -1.0)
    assert phases.episodes_played(world.ledger) == 2


def test_each_seat_of_a_match_is_stated_with_its_task() -> None:
    share = Share(label="game", seats=2, train=(4, 7))
    world = Matches(dataclasses.replace(SELF_PLAY, mixture=(share,)))
    match, *_ = world.matches()
    world.ledger.tables.take_changes()
    world.play(match, 1.0, -1.0)
    facts = [fact for fact in world.ledger.tables.take_changes().facts if isinstance(fact, TrajectoryReady)]
    assert [(fact.ticket_id, fact.seat, fact.environment) for fact in facts] == [
        (1, 0, "game"),
        (2, 1, "game"),
    ]
    assert {(fact.task, fact.env_seed) for fact in facts} == {(match[0].task, match[0].env_seed)}
    assert match[0].task in (4, 7)


def test_credit_counts_matches_and_a_match_goes_to_one_worker() -> None:
    tickets = Matches(SELF_PLAY).ledger.lease("w", 1, 3, 5.0)
    assert [(each.id, each.seat) for each in tickets] == [(1, 0), (2, 1), (3, 0), (4, 1), (5, 0), (6, 1)]
    assert len({each.fence for each in tickets}) == 6
    assert {each.worker for each in tickets} == {"w"}


def test_a_match_is_completed_whole_and_again_in_a_repetition() -> None:
    world = Matches(SELF_PLAY)
    match, *_ = world.matches()
    assert world.play(match, 1.0, -1.0) is TicketVerdict.ACCEPTED
    assert {each.state for each in match} == {TicketState.READY}
    assert world.play(match, 1.0, -1.0) is TicketVerdict.ACCEPTED
    assert world.counts()["ready"] == 2


@pytest.mark.parametrize("seat", [0, 1])
def test_a_part_of_a_match_is_refused(seat: int) -> None:
    world = Matches(SELF_PLAY)
    match, other, *_ = world.matches()
    (attempt, result), foreign = (
        world.reports(match, (1.0, -1.0))[seat],
        world.reports(other, (1.0, -1.0))[1 - seat],
    )
    for others in ([], [foreign]):
        verdict, reason = world.ledger.attempts.complete("w", 1, attempt, result, others)
        assert verdict is TicketVerdict.REFUSED
        assert reason == "tickets 1 to 2 are one match, and reported together"
    assert {each.state for each in match} == {TicketState.LEASED}


def test_a_match_with_one_old_fence_is_refused_whole() -> None:
    world = Matches(SELF_PLAY)
    match, *_ = world.matches()
    first, (attempt, result) = world.reports(match, (1.0, -1.0))
    old = Attempt(attempt.ticket_id, attempt.attempt, attempt.fence - 1)
    verdict, reason = world.ledger.attempts.complete("w", 1, *first, [(old, result)])
    assert verdict is TicketVerdict.REFUSED and "fence" in reason
    assert {each.state for each in match} == {TicketState.LEASED}


@pytest.mark.parametrize("seat", [0, 1])
def test_a_fault_of_one_seat_tries_the_match_again(seat: int) -> None:
    world = Matches(dataclasses.replace(SELF_PLAY, attempts=3))
    match, *_ = world.matches()
    rewards = [1.0, 1.0]
    rewards[seat] = float("nan")
    assert world.play(match, *rewards) is TicketVerdict.RETRIED
    assert {(each.state, each.failures, each.broken) for each in match} == {(TicketState.PENDING, 1, True)}
    [again] = world.matches()
    assert again == match and {each.attempt for each in again} == {2}


def test_a_match_fails_once_when_its_lease_expires_or_its_worker_leaves() -> None:
    world = Matches(dataclasses.replace(SELF_PLAY, attempts=9))
    match, other, *_ = world.matches()
    world.play(other, 1.0, -1.0)
    world.ledger.attempts.expire(RULES.lease_s + 1.0)
    assert {(each.state, each.failures) for each in match} == {(TicketState.PENDING, 1)}
    world.matches()
    world.ledger.membership.leave("w", "gone")
    assert {(each.state, each.failures) for each in match} == {(TicketState.PENDING, 2)}
    # What lay in the arena of the worker is lost with it, both seats' trajectories.
    assert {(each.state, each.failures) for each in other} == {(TicketState.PENDING, 1)}


def test_a_trajectory_that_is_lost_takes_its_match_along() -> None:
    world = Matches(dataclasses.replace(SELF_PLAY, attempts=9))
    matches = world.matches()
    for match in matches:
        world.play(match, 1.0, -1.0)
    world.ledger.lose(matches[0][1].id, 1)
    assert {each.state for each in matches[0]} == {TicketState.PENDING}
    assert set(world.ledger.tables.freed) == {"k1", "k2"}
    [again] = world.matches()
    world.play(again, 1.0, -1.0)
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and len(batch.tickets) == 8
    world.ledger.lose(matches[1][0].id, 1)
    world.ledger.dissolve()
    assert {each.state for each in matches[1]} == {TicketState.PENDING}
    assert {each.state for each in matches[2]} == {TicketState.READY}


def test_a_group_is_trained_without_the_match_that_failed() -> None:
    world = Matches(dataclasses.replace(SELF_PLAY, group_size=3, min_group_size=2))
    failed, *others = world.matches()
    world.play(failed, 0.0, 0.0, ending=EpisodeEnding.INFRA_ERROR)
    assert world.counts()["dropped:member_failed"] == 2
    for number, match in enumerate(others):
        world.play(match, float(number), -float(number))
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and len(batch.tickets) == 10
    world.ledger.commit(batch.id, 2)
    check_tables(world.ledger.tables)


@pytest.mark.parametrize("least", [0, 2])
def test_a_truncated_match_is_left_out_or_takes_its_group_along(least: int) -> None:
    rules = dataclasses.replace(SELF_PLAY, group_size=3, drops_truncated=True, min_group_size=least)
    world = Matches(rules)
    match, *_ = world.matches()
    assert world.play(match, 0.0, 0.0, ending=EpisodeEnding.TRUNCATED) is TicketVerdict.ACCEPTED
    assert world.counts()["dropped:truncated"] == (2 if least else 6)
    assert {"k1", "k2"} <= set(world.ledger.tables.freed)


def test_a_group_has_signal_if_the_rewards_of_any_seat_differ() -> None:
    world = Matches(dataclasses.replace(SELF_PLAY, resample=1))
    first, second, third, fourth = world.matches()
    world.play(first, 1.0, -1.0)
    world.play(second, 1.0, -1.0)
    assert world.counts()["dropped:no_signal"] == 4
    world.play(third, 1.0, -1.0)
    world.play(fourth, 1.0, -0.5)
    assert world.counts()["dropped:no_signal"] == 4


def test_each_seat_is_compared_with_its_own() -> None:
    world = Matches(SELF_PLAY)
    for match, rewards in zip(world.matches(), [(1, 0), (0, 0), (1, 5), (1, 7)], strict=True):
        world.play(match, *rewards)
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None
    plan = split_batch(batch, world.ledger.tables.tickets, 1, "mean")
    advantages = {item.ticket_id: item.advantage for item in plan.ranks[0]}
    assert [advantages[number] for number in range(1, 9)] == [0.5, 0, -0.5, 0, 0, -1, 0, 1]
    committed = world.ledger.commit(batch.id, 2)
    assert committed is not None
    figures = summary(committed)
    assert (figures["seats.0.reward_mean"], figures["seats.1.reward_mean"]) == (0.75, 3.0)
    assert (figures["seats.0.win_rate"], figures["seats.1.win_rate"]) == (0.75, 0.5)
    assert figures["seats.1.turns_mean"] == 3.0 and figures["reward_mean"] == 1.875


def test_a_seat_that_did_not_act_is_trained_with_the_others() -> None:
    world = Matches(SELF_PLAY)
    for match in world.matches():
        (attempt, result), (other, still) = world.reports(match, (1.0, -1.0))
        still.trained_tokens = still.oldest_version = still.newest_version = still.turns = 0
        verdict, _ = world.ledger.attempts.complete("w", 1, attempt, result, [(other, still)])
        assert verdict is TicketVerdict.ACCEPTED
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and len(batch.tickets) == 8
    world.ledger.commit(batch.id, 2)
    assert world.counts()["trained"] == 8


def test_matches_outlive_the_scheduler() -> None:
    world, image = Matches(SELF_PLAY), Image()
    matches = world.matches()
    world.play(matches[0], 1.0, -1.0)
    image.apply(world.ledger.tables.take_changes())
    again = Ledger.restored(SELF_PLAY, image.load(), 0.0)
    assert again.tables.tickets == world.ledger.tables.tickets
    assert again.tables.counts() == {"leased": 6, "ready": 2}


def test_a_ticket_with_one_seat_is_stored_as_before() -> None:
    image = Image()
    image.apply(Matches(TRAIN_ONLY).ledger.tables.take_changes())
    assert not any(b"seats" in data for data in image.records.values())
