"""Groups that are trained without all their members, replaced for want of signal, or not trained at all."""

from __future__ import annotations

import dataclasses

import pytest

from earl.ticket_ranges import RangeSet
from services.scheduler.ledger import phases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.state.mixture import instance_at
from services.scheduler.state.rules import Rules, Share
from services.scheduler.state.tickets import (
    Attempt,
    EpisodeEnding,
    EpisodeResult,
    Purpose,
    Ticket,
    TicketVerdict,
)
from services.scheduler.state.workers import WorkerRecord
from tests.support.ledger import RULES, Image, check_tables

TRAIN_ONLY = dataclasses.replace(
    RULES, warmup_batches=0, evaluation_episodes=0, group_size=4, batch_groups=2, staleness=0, attempts=1
)


class OneWorker:
    """A ledger with a trainer at version 1 and one rollout worker, which plays whatever there is."""

    def __init__(self, rules: Rules) -> None:
        self.ledger = Ledger(rules)
        self.ledger.membership.join(WorkerRecord(name="w", incarnation=1), 0.0)
        self.ledger.membership.join(WorkerRecord(name="t", incarnation=1), 0.0)
        reconcile(self.ledger, "t", 1, 1, 1, RangeSet())
        self.advance()

    def advance(self) -> None:
        phases.advance(self.ledger, 0.0)
        self.ledger.membership.mark_alive("w", 1, 0.0, self.ledger.tables.run.version)
        check_tables(self.ledger.tables)

    def lease(self) -> list[Ticket]:
        return self.ledger.lease("w", 1, 100, 0.0)

    def report(
        self, ticket: Ticket, reward: float = 0.0, ending: EpisodeEnding = EpisodeEnding.OK
    ) -> TicketVerdict:
        version = self.ledger.tables.run.version
        told = EpisodeResult(
            ending=ending, reward=reward, total_tokens=9, trained_tokens=4, oldest_version=version,
            newest_version=version, descriptor_key=f"k{ticket.id}", message="too long",
        )  # fmt: skip
        attempt = Attempt(ticket.id, ticket.attempt, ticket.fence)
        verdict, _ = self.ledger.attempts.complete("w", 1, attempt, told)
        self.advance()
        return verdict

    def counts(self) -> dict[str, int]:
        return self.ledger.tables.counts()


def rewards_of(tickets: list[Ticket]) -> list[float]:
    """Rewards that differ within every group."""
    return [float(ticket.id % 2) for ticket in tickets]


def test_a_group_is_trained_without_the_member_that_failed() -> None:
    world = OneWorker(dataclasses.replace(TRAIN_ONLY, min_group_size=2))
    first, *others = world.lease()
    assert world.report(first, ending=EpisodeEnding.INFRA_ERROR) is TicketVerdict.RETRIED
    assert world.counts()["dropped:member_failed"] == 1
    for ticket, reward in zip(others, rewards_of(others), strict=True):
        world.report(ticket, reward)
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and batch.tickets == [ticket.id for ticket in others]
    committed = world.ledger.commit(batch.id, 2)
    assert committed is not None and len(committed.results) == 7
    check_tables(world.ledger.tables)


def test_a_group_with_too_few_left_is_replaced() -> None:
    world = OneWorker(dataclasses.replace(TRAIN_ONLY, min_group_size=3))
    tickets = world.lease()
    for ticket in tickets[:2]:
        world.report(ticket, ending=EpisodeEnding.INFRA_ERROR)
    counts = world.counts()
    assert (counts["dropped:member_failed"], counts["dropped:group_incomplete"]) == (1, 3)
    again = world.lease()
    assert len(again) == 4 and {ticket.index for ticket in again} == {tickets[0].index}
    assert {ticket.env_seed for ticket in again} != {tickets[0].env_seed}


def test_a_group_without_signal_is_replaced_as_often_as_the_rules_say() -> None:
    world = OneWorker(dataclasses.replace(TRAIN_ONLY, resample=2))
    seeds = []
    for round_number in range(3):
        tickets = [ticket for ticket in world.lease() if ticket.index == 0]
        seeds.append(tickets[0].env_seed)
        for ticket in tickets:
            assert world.report(ticket, reward=1.0) is TicketVerdict.ACCEPTED
        assert world.counts().get("dropped:no_signal", 0) == 4 * min(2, round_number + 1)
    assert len(set(seeds)) == 3
    assert seeds == [instance_at(world.ledger.rules, Purpose.TRAIN, 0, take).env_seed for take in range(3)]
    # The third one stays, though its rewards are equal.
    assert world.ledger.tables.whole[Purpose.TRAIN] == {tickets[0].group}


def test_without_the_rule_a_group_without_signal_is_trained() -> None:
    world = OneWorker(TRAIN_ONLY)
    for ticket in world.lease():
        world.report(ticket, reward=1.0)
    assert phases.next_batch(world.ledger, 0.0) is not None


def test_the_columns_of_a_group_without_signal_are_freed() -> None:
    world = OneWorker(dataclasses.replace(TRAIN_ONLY, resample=1))
    tickets = world.lease()
    for ticket in tickets[:4]:
        world.report(ticket, reward=1.0)
    assert set(world.ledger.tables.freed) == {f"k{ticket.id}" for ticket in tickets[:4]}


@pytest.mark.parametrize("least", [0, 2])
def test_a_truncated_episode_is_left_out_or_takes_its_group_along(least: int) -> None:
    world = OneWorker(dataclasses.replace(TRAIN_ONLY, drops_truncated=True, min_group_size=least))
    first, *others = world.lease()
    assert world.report(first, ending=EpisodeEnding.TRUNCATED) is TicketVerdict.ACCEPTED
    assert world.counts()["dropped:truncated"] == (1 if least else 4)
    assert f"k{first.id}" in world.ledger.tables.freed
    if least:
        for ticket, reward in zip(others, rewards_of(others), strict=True):
            world.report(ticket, reward)
        batch = phases.next_batch(world.ledger, 0.0)
        assert batch is not None and first.id not in batch.tickets


def test_truncation_alone_ends_a_run() -> None:
    world = OneWorker(dataclasses.replace(TRAIN_ONLY, drops_truncated=True))
    for _ in range(5):
        world.report(world.lease()[0], ending=EpisodeEnding.TRUNCATED)
    assert world.ledger.attempts.given_up == 5
    assert world.ledger.attempts.last_fault == "truncated: too long"


def test_a_mixture_issues_groups_of_each_size_and_says_their_environment() -> None:
    mixture = (Share("a", 0.5, 2), Share("b", 0.5, 3))
    world = OneWorker(dataclasses.replace(TRAIN_ONLY, mixture=mixture, batch_groups=8))
    tickets = world.lease()
    sizes: dict[int, list[str]] = {}
    for ticket in tickets:
        sizes.setdefault(ticket.group, []).append(ticket.environment)
    for labels in sizes.values():
        assert labels in (["a"] * 2, ["b"] * 3)
    assert {labels[0] for labels in sizes.values()} == {"a", "b"}
    for ticket, reward in zip(tickets, rewards_of(tickets), strict=True):
        world.report(ticket, reward)
    batch = phases.next_batch(world.ledger, 0.0)
    assert batch is not None and len(batch.tickets) == len(tickets)
    committed = world.ledger.commit(batch.id, 2)
    assert committed is not None
    assert sorted(committed.environments) == sorted(ticket.environment for ticket in tickets)


def test_what_a_mixture_has_issued_is_restored_as_it_was() -> None:
    mixture = (Share("a", 0.5, 2, train=(0, 2, 4), held_out=(1, 3)), Share("b", 0.5, 3))
    world = OneWorker(dataclasses.replace(TRAIN_ONLY, mixture=mixture, batch_groups=8))
    image = Image()
    image.apply(world.ledger.tables.take_changes())
    again = Ledger.restored(world.ledger.rules, image.load(), 0.0)
    assert again.tables.tickets == world.ledger.tables.tickets
    assert {ticket.task for ticket in again.tables.tickets.values() if ticket.environment == "b"} == {-1}
    assert {ticket.task for ticket in again.tables.tickets.values() if ticket.environment == "a"} <= {0, 2, 4}
