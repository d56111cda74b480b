"""A batch of a deterministic run is a function of (seed, phase, step): its tickets, order and the version
that samples each, whatever fails, dies or is rolled back."""

from __future__ import annotations

import dataclasses
import random

import pytest

from earl.ticket_ranges import RangeSet
from services.scheduler.ledger import phases
from services.scheduler.ledger.admission import places
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.state.rules import Rules
from services.scheduler.state.run import Batch
from services.scheduler.state.seeds import env_seed, sample_seeds
from services.scheduler.state.tickets import (
    Attempt,
    EpisodeEnding,
    EpisodeResult,
    Purpose,
    Reason,
    TicketState,
    TicketVerdict,
)
from services.scheduler.state.workers import WorkerRecord
from tests.support.ledger import RULES, Rollout, World

EXACT = dataclasses.replace(RULES, staleness=0, steps=6, deterministic=True)
STALENESS = (0, 1, 2)
# What a ticket is: all that its tokens can depend on beside the weights.
Ticket = tuple[str, int, int, int, int, float]


class ExactWorld(World):
    """A world whose environments are deterministic: some instances are broken, always. Workers play a ticket
    with exactly its version, as soon as that is published.

    handed_out: version -> every distinct batch that was ever handed out to be trained at it.
    """

    def __init__(self, choices: random.Random, rules=EXACT) -> None:
        super().__init__(choices, rules)
        self.handed_out: dict[int, set[tuple[Ticket, ...]]] = {}

    def restart(self) -> None:
        super().restart()
        self.act_quietly(lambda: phases.resume(self.ledger, self.now))

    def complete(self, rollout: Rollout, number: int, ending: EpisodeEnding, *, forget: bool = True) -> None:
        ticket, _ = rollout.playing[number]
        if ticket.env_seed % 4 == 0:
            ending = EpisodeEnding.ENV_ERROR
        elif ending is EpisodeEnding.ENV_ERROR:
            ending = EpisodeEnding.INFRA_ERROR
        newest = rollout.version
        if ticket.purpose is not Purpose.WARMUP:
            rollout.version = min(newest, ticket.min_version)
        try:
            super().complete(rollout, number, ending, forget=forget)
        finally:
            rollout.version = newest

    def next_batch(self) -> Batch | None:
        batch = super().next_batch()
        if batch is not None:
            tickets = [self.ledger.tables.tickets[number] for number in batch.tickets]
            described = tuple(
                (
                    one.purpose.value,
                    one.index,
                    one.env_seed,
                    one.sample_seed,
                    one.min_version,
                    one.temperature,
                )
                for one in tickets
            )
            self.handed_out.setdefault(batch.version, set()).add(described)
        return batch

    def batches(self) -> dict[int, tuple[Ticket, ...]]:
        """The one batch of every version."""
        assert all(len(found) == 1 for found in self.handed_out.values()), self.handed_out
        return {version: next(iter(found)) for version, found in self.handed_out.items()}


def undisturbed(rules=EXACT, world_of=ExactWorld) -> dict[int, tuple[Ticket, ...]]:
    world = world_of(random.Random(0), rules)
    world.crash_chance = 0.0
    world.restart()
    world.attempt(world.trainer_starts, 0)
    world.finish()
    return world.batches()


def rules_with(staleness: int) -> Rules:
    return dataclasses.replace(EXACT, staleness=staleness)


@pytest.mark.parametrize("staleness", STALENESS)
@pytest.mark.parametrize("crash_chance", [0.0, 0.05])
def test_whatever_happens_every_version_is_trained_on_the_same_tickets_in_the_same_order(
    crash_chance: float, staleness: int
) -> None:
    rules = rules_with(staleness)
    expected = undisturbed(rules)
    assert sorted(expected) == list(range(1, 1 + EXACT.warmup_batches + EXACT.steps))
    instances = {ticket[2] for batch in expected.values() for ticket in batch}
    assert all(seed % 4 for seed in instances)  # the broken ones were replaced
    rolled_back = repeated = 0
    walks = 5 if staleness else 15
    for seed in range(walks):
        world = ExactWorld(random.Random(f"{seed} {crash_chance}"), rules)
        world.crash_chance = crash_chance
        world.restart()
        world.wander(120)
        world.finish()
        assert world.batches() == expected
        counts = world.ledger.tables.counts()
        rolled_back += counts.get("dropped:rolled_back", 0)
        repeated += world.ledger.tables.run.next_batch - 1 - len(expected)
    assert rolled_back > 4 * walks and repeated >= walks  # the walks did disturb it


@pytest.mark.parametrize("staleness", STALENESS)
def test_the_plan_fixes_the_version_that_samples_a_batch(staleness: int) -> None:
    first = EXACT.warmup_batches + 1
    for version, batch in undisturbed(rules_with(staleness)).items():
        if batch[0][0] == "train":
            assert {ticket[4] for ticket in batch} == {max(first, version - staleness)}


def test_a_group_that_is_complete_does_not_go_ahead_of_the_next_place() -> None:
    ledger = begun(staleness=1)
    ledger.membership.join(WorkerRecord(name="w", incarnation=1), 0.0)
    tickets = ledger.lease("w", 1, 100, 0.0)
    places_of = sorted({ticket.index for ticket in tickets})
    assert len(places_of) == 2 * EXACT.batch_groups

    def finish(place: int) -> None:
        for ticket in tickets:
            if ticket.index == place:
                result = EpisodeResult(
                    total_tokens=9, trained_tokens=4, oldest_version=1, newest_version=1, descriptor_key="k"
                )
                attempt = Attempt(ticket.id, ticket.attempt, ticket.fence)
                ledger.attempts.complete("w", 1, attempt, result)

    for place in places_of[1:]:
        finish(place)
        assert phases.next_batch(ledger, 0.0) is None
    finish(places_of[0])
    batch = phases.next_batch(ledger, 0.0)
    assert batch is not None
    assert {ledger.tables.tickets[number].index for number in batch.tickets} == {0, 1}


def test_a_place_that_is_issued_again_keeps_its_version() -> None:
    ledger = begun(staleness=2)
    groups = {ledger.tables.place(Purpose.TRAIN, each): each for each in ledger.tables.groups[Purpose.TRAIN]}
    for ticket in list(ledger.tables.tickets.values()):
        if ticket.index < EXACT.batch_groups:
            ledger.tables.move(ticket, TicketState.TRAINED)
    ledger.tables.run.version = 2
    phases.advance(ledger, 0.0)
    versions = {ticket.index: ticket.min_version for ticket in ledger.tables.tickets.values()}
    assert set(versions.values()) == {1, 2}
    ledger.attempts.drop_group(Purpose.TRAIN, groups[3], Reason.GROUP_INCOMPLETE)
    phases.advance(ledger, 0.0)
    [again] = {ticket.min_version for ticket in ledger.tables.tickets.values()
               if ticket.index == 3 and ticket.state is TicketState.PENDING}  # fmt: skip
    assert again == versions[3] == 1


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_a_run_resumed_with_less_staleness_issues_what_the_plan_no_longer_has_again(staleness: int) -> None:
    ledger = begun(staleness=2)
    for version in range(1, 5):  # the trained ones are gone, the rest is of the plan with staleness 2
        for ticket in list(ledger.tables.tickets.values()):
            if ticket.index < version * EXACT.batch_groups and ticket.state is not TicketState.TRAINED:
                ledger.tables.move(ticket, TicketState.TRAINED)
        ledger.tables.run.version = version + 1
        phases.advance(ledger, 0.0)
    before = dict(ledger.tables.groups[Purpose.TRAIN])
    phases.resume(ledger, 0.0)
    assert ledger.tables.groups[Purpose.TRAIN] == before  # with the same keys nothing happens
    ledger.rules = dataclasses.replace(ledger.rules, staleness=staleness)
    phases.resume(ledger, 0.0)
    phases.advance(ledger, 0.0)
    versions = {
        ticket.index // EXACT.batch_groups: ticket.min_version
        for ticket in ledger.tables.tickets.values()
        if ticket.state is TicketState.PENDING
    }
    # The last of six batches is not issued yet without staleness.
    assert versions == {batch: batch + 1 - min(staleness, 2) for batch in range(4, min(6, 5 + staleness))}


@pytest.mark.parametrize("newer", [1, 2])
def test_a_worker_with_a_newer_version_does_not_make_a_ticket_newer(newer: int) -> None:
    ledger = begun(staleness=1)
    ledger.tables.run.version = 2
    ledger.membership.join(WorkerRecord(name="w", incarnation=1), 0.0)
    ledger.membership.mark_alive("w", 1, 0.0, newer)
    ticket = ledger.lease("w", 1, 1, 0.0)[0]
    ledger.attempts.retry(ticket)
    assert (ticket.min_version, ticket.floor) == (1, 1)


def test_batches_of_a_phase_share_no_instance_and_each_is_in_the_order_of_its_places() -> None:
    expected = undisturbed()
    for purpose, size in (("warmup", EXACT.warmup_episodes), ("train", EXACT.batch_groups)):
        batches = [batch for batch in expected.values() if batch[0][0] == purpose]
        for number, batch in enumerate(batches):
            found = list(dict.fromkeys(ticket[1] for ticket in batch))
            assert found == list(range(number * size, (number + 1) * size))


def begun(**changed) -> Ledger:
    ledger = Ledger(dataclasses.replace(EXACT, warmup_batches=0, evaluation_episodes=0, **changed))
    ledger.membership.join(WorkerRecord(name="t", incarnation=1), 0.0)
    reconcile(ledger, "t", 1, 1, 1, RangeSet())
    phases.advance(ledger, 0.0)
    return ledger


def test_chance_gives_up_nothing_in_a_deterministic_run() -> None:
    for deterministic, dropped in ((True, 0), (False, 2)):
        ledger = begun(deterministic=deterministic, membership_s=1e9)
        ledger.membership.join(WorkerRecord(name="w", incarnation=0), 0.0)
        ticket = ledger.lease("w", 0, 1, 0.0)[0]
        for life in range(EXACT.attempts):
            ledger.membership.join(WorkerRecord(name="w", incarnation=life + 1), 0.0)
            ledger.lease("w", life + 1, 1, 0.0)
        assert ledger.attempts.given_up == 1  # so that a run in which nothing succeeds ends all the same
        assert ledger.tables.counts().get("dropped:group_incomplete", 0) == dropped
        phases.advance(ledger, 0.0)
        same = [one for one in ledger.tables.tickets.values() if one.index == ticket.index]
        assert (
            ticket.env_seed in {one.env_seed for one in same if one.group == max(o.group for o in same)}
        ) is (deterministic)


@pytest.mark.parametrize(("oldest", "newest"), [(1, 2), (2, 2), (0, 1)])
def test_only_the_version_that_was_asked_for_samples(oldest: int, newest: int) -> None:
    ledger = begun()
    ledger.tables.run.version = 2  # whatever else is known: this ticket asks for version 1
    ledger.membership.join(WorkerRecord(name="w", incarnation=1), 0.0)
    ticket = ledger.lease("w", 1, 1, 0.0)[0]
    attempt = Attempt(ticket.id, ticket.attempt, ticket.fence)
    sampled = EpisodeResult(
        total_tokens=9, trained_tokens=4, oldest_version=oldest, newest_version=newest, descriptor_key="k"
    )
    verdict, reason = ledger.attempts.complete("w", 1, attempt, sampled)
    assert verdict is TicketVerdict.RETRIED and "not 1 alone" in reason
    assert not ticket.broken and ticket.min_version == 1


def test_a_substitute_has_seeds_of_its_own_and_the_instance_keeps_those_it_always_had() -> None:
    assert env_seed(7, "train", 3) == env_seed(7, "train", 3, 0) != env_seed(7, "train", 3, 1)
    assert (
        sample_seeds(7, "train", 3, 2)
        == sample_seeds(7, "train", 3, 9)[:2]
        != sample_seeds(7, "train", 3, 2, 1)
    )
    seeds = {env_seed(7, "train", index, take) for index in range(200) for take in range(5)}
    assert len(seeds) == 1000


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_places_cover_every_phase_once(staleness: int) -> None:
    rules = dataclasses.replace(EXACT, staleness=staleness)
    windows = [places(rules, Purpose.TRAIN, version) for version in range(12)]
    assert all(len(window) <= (staleness + 1) * rules.batch_groups for window in windows)
    assert windows[0].start == 0 and len(windows[-1]) == 0
    assert sorted({place for window in windows for place in window}) == list(
        range(rules.steps * rules.batch_groups)
    )


def test_a_run_resumed_with_smaller_batches_still_gets_instances() -> None:
    ledger = begun(batch_groups=4, group_size=1)
    ledger.membership.join(WorkerRecord(name="w", incarnation=1), 0.0)
    trained = []
    for version in (1, 2):
        for ticket in ledger.lease("w", 1, 100, 0.0):
            ledger.tables.move(ticket, TicketState.TRAINED)
            trained.append(ticket.index)
        ledger.tables.run.version = version + 1
        phases.advance(ledger, 0.0)
    assert trained == list(range(8))
    for group in list(ledger.tables.groups[Purpose.TRAIN]):
        ledger.attempts.drop_group(Purpose.TRAIN, group, Reason.ROLLED_BACK)
    ledger.rules = dataclasses.replace(ledger.rules, batch_groups=2)
    phases.advance(ledger, 0.0)
    live = [ledger.tables.place(Purpose.TRAIN, group) for group in ledger.tables.groups[Purpose.TRAIN]]
    assert live == [8, 9]
