"""Columns between ledger, stages and trainer: no batch before its columns, no group torn apart."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from earl.parallelism import REFERENCE
from earl.ticket_ranges import RangeSet
from services.scheduler.batches import consumers
from services.scheduler.batches.batch_plan import split_batch
from services.scheduler.batches.columns import (
    NOWHERE,
    ColumnLease,
    ColumnProgress,
    ColumnRegistry,
    Location,
)
from services.scheduler.ledger import phases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.state.tickets import (
    Attempt,
    EpisodeEnding,
    EpisodeResult,
    Purpose,
    Ticket,
    TicketState,
)
from services.scheduler.state.workers import WorkerId, WorkerRecord
from tests.support.ledger import RULES, Image, check_tables

STAGE = WorkerId("reference", 1)


def member(name: str, incarnation: int = 1) -> WorkerRecord:
    return WorkerRecord(name=name, incarnation=incarnation)


def play(
    ledger: Ledger, ticket: Ticket, trained_tokens: int = 4, ending: EpisodeEnding = EpisodeEnding.OK
) -> None:
    """One leased attempt ends."""
    result = EpisodeResult(
        ending=ending, total_tokens=10, trained_tokens=trained_tokens, oldest_version=ticket.min_version,
        newest_version=ticket.min_version, descriptor_key=f"trajectory/{ticket.id}/{ticket.attempt}",
    )  # fmt: skip
    attempt = Attempt(ticket.id, ticket.attempt, ticket.fence)
    ledger.attempts.complete(ticket.worker, ticket.incarnation, attempt, result)


def locate(number: int, column: str = "reference") -> Location:
    return Location((f"{column}/0", f"{column}/1"), 10 * number)


# --- any order of events --------------------------------------------------------------------


class World(RuleBasedStateMachine):
    """Two stages beside rollout, trainer and scheduler; all may die.

    `made` is what lies in the stages' memories: (role, ticket, attempt) → where.
    """

    rules_of_run = dataclasses.replace(
        RULES, warmup_batches=1, evaluation_episodes=0, group_size=2, batch_groups=2, staleness=1, steps=50
    )

    def __init__(self) -> None:
        super().__init__()
        self.columns = ColumnRegistry([REFERENCE, "values"])
        self.ledger = Ledger(self.rules_of_run, self.columns.held_back)
        self.image = Image()
        self.lives = {"rollout-0": 1, "trainer": 1, "reference": 1, "values": 1}
        self.leases: dict[str, ColumnLease] = {}
        self.made: dict[tuple[str, int, int], Location] = {}
        self.fences: list[int] = []
        self.trained: set[int] = set()
        self.handed_out = 0
        for name in self.lives:
            self.join(name)
        reconcile(self.ledger, "trainer", 1, 1, 1, RangeSet())
        self.settle()

    def join(self, name: str) -> None:
        self.ledger.membership.join(member(name, self.lives[name]), 0.0)

    def settle(self) -> None:
        phases.advance(self.ledger, 0.0)
        consumers.follow(self.columns, self.ledger)
        self.image.apply(self.ledger.tables.take_changes())

    # --- rollout ----------------------------------------------------------------------------

    @rule(credit=st.integers(1, 8), which=st.randoms(use_true_random=False))
    def plays(self, credit: int, which: random.Random) -> None:
        for ticket in self.lease_tickets(credit):
            ending = EpisodeEnding.OK if which.random() < 0.9 else EpisodeEnding.INFRA_ERROR
            play(self.ledger, ticket, which.choice([0, 4, 4, 4]), ending)
        self.settle()

    def lease_tickets(self, credit: int) -> list[Ticket]:
        """Plays as a worker that has loaded the newest version."""
        life = self.lives["rollout-0"]
        self.ledger.membership.mark_alive("rollout-0", life, 0.0, max(1, self.ledger.tables.run.version))
        return self.ledger.lease("rollout-0", life, credit, 0.0)

    @rule()
    def rollout_dies(self) -> None:
        """Its arena is gone: what is ready is played again, what is planned is lost."""
        self.lives["rollout-0"] += 1
        self.join("rollout-0")
        self.settle()

    # --- stages -----------------------------------------------------------------------------

    @rule(role=st.sampled_from(["reference", "values"]), credit=st.integers(0, 60))
    def leases_columns(self, role: str, credit: int) -> None:
        before = self.ledger.tables.run.fence
        lease = consumers.lease(self.columns, self.ledger, role, WorkerId(role, self.lives[role]), credit)
        for one in lease.trajectories:
            ticket = self.ledger.tables.tickets[one.ticket_id]
            assert ticket.state in (TicketState.READY, TicketState.PLANNED) and ticket.attempt == one.attempt
            assert one.trained_tokens and (role, one.ticket_id, one.attempt) not in self.made
            assert one.descriptor_key == f"trajectory/{one.ticket_id}/{one.attempt}"
        if lease.trajectories:
            assert lease.fence > before and lease.fence not in self.fences
            self.fences.append(lease.fence)
        # The former one has ended, even if there was nothing for a new one.
        self.leases[role] = lease
        self.settle()

    @rule(role=st.sampled_from(["reference", "values"]), which=st.randoms(use_true_random=False))
    def completes_columns(self, role: str, which: random.Random) -> None:
        lease = self.leases.pop(role, None)
        if lease is None:
            return
        consumers.follow(self.columns, self.ledger)
        results = [one for one in lease.trajectories if which.random() < 0.8]
        lost = [one for one in lease.trajectories if one not in results and which.random() < 0.3]
        answers = {(one.ticket_id, one.attempt): locate(one.ticket_id, role) for one in results}
        names = [(one.ticket_id, one.attempt) for one in lost]
        stage = WorkerId(role, self.lives[role])
        wanted = {one for one in lease.trajectories if self.is_wanted(one.ticket_id, one.attempt)}
        current = self.columns.workers[role] == stage
        refused, gone = self.columns.complete(role, stage, lease.fence, answers, names)
        accepted = [one for one in results if current and one in wanted]
        assert refused == len(results) - len(accepted)
        for one in accepted:
            self.made[role, one.ticket_id, one.attempt] = answers[one.ticket_id, one.attempt]
        assert gone == [one for one in lost if current and one in wanted]
        consumers.lose(self.ledger, gone)
        self.settle()

    @rule(role=st.sampled_from(["reference", "values"]), noticed=st.booleans())
    def stage_dies(self, role: str, noticed: bool) -> None:
        self.lives[role] += 1
        self.leases.pop(role, None)
        self.made = {name: where for name, where in self.made.items() if name[0] != role}
        if noticed:
            self.ledger.membership.leave(role, "it died")
            self.settle()
        self.join(role)
        self.settle()

    # --- trainer and scheduler --------------------------------------------------------------

    @rule(fate=st.sampled_from(["commit", "commit", "commit", "unread"]))
    def trains(self, fate: str) -> None:
        planned = self.ledger.tables.batch
        if planned is not None and planned.id == self.handed_out:
            self.columns.recall(planned.tickets)
            self.handed_out = 0
            for number in planned.tickets:
                for role in ("reference", "values"):
                    self.made.pop((role, number, self.ledger.tables.tickets[number].attempt), None)
        consumers.follow(self.columns, self.ledger)
        if consumers.must_wait(self.columns, self.ledger):
            return
        batch = phases.next_batch(self.ledger, 0.0)
        self.settle()
        if batch is None:
            return
        self.handed_out = batch.id
        tickets = [self.ledger.tables.tickets[number] for number in batch.tickets]
        assert not self.trained & set(batch.tickets)
        groups = {ticket.group for ticket in tickets}
        if batch.purpose is Purpose.TRAIN:
            assert len(groups) == 2 and len(tickets) == 4
        for role in ("reference", "values"):
            found = self.columns.locations(role, batch.tickets)
            for ticket in tickets:
                assert ticket.result is not None
                if batch.purpose is Purpose.WARMUP:
                    assert ticket.id not in found
                elif not ticket.result.trained_tokens:
                    assert found[ticket.id] == NOWHERE
                else:
                    # Ready, and of this very attempt, in the memory of a stage that lives.
                    assert found[ticket.id] == self.made[role, ticket.id, ticket.attempt]
        if fate == "commit":
            self.ledger.commit(batch.id, batch.version + 1)
            self.trained |= set(batch.tickets)
            self.settle()

    @rule()
    def scheduler_restarts(self) -> None:
        """Its successor knows the ledger, and nothing of what stages made."""
        self.columns = ColumnRegistry([REFERENCE, "values"])
        stored, held_back = self.image.peek(), self.columns.held_back
        self.ledger = Ledger.restored(self.rules_of_run, stored, 0.0, held_back)
        self.made.clear()
        self.handed_out = 0
        self.settle()

    # --- always -----------------------------------------------------------------------------

    def is_wanted(self, number: int, attempt: int) -> bool:
        ticket = self.ledger.tables.tickets.get(number)
        return ticket is not None and ticket.attempt == attempt and self.is_there(ticket)

    def is_there(self, ticket: Ticket) -> bool:
        return ticket.purpose is Purpose.TRAIN and ticket.state in (TicketState.READY, TicketState.PLANNED)

    @invariant()
    def the_registry_has_what_the_ledger_may_train(self) -> None:
        there = {ticket.id for ticket in self.ledger.tables.tickets.values() if self.is_there(ticket)}
        for role in self.columns.progress().values():
            assert role.waiting + role.leased + role.done == len(there)

    @invariant()
    def what_is_made_is_known_and_nothing_else(self) -> None:
        numbers = range(self.ledger.tables.run.next_ticket)
        for role in ("reference", "values"):
            found = {
                number: where
                for number, where in self.columns.locations(role, numbers).items()
                if where != NOWHERE
            }
            assert found == {
                number: where
                for (maker, number, attempt), where in self.made.items()
                if maker == role and self.is_wanted(number, attempt)
            }

    @invariant()
    def the_ledger_is_whole(self) -> None:
        check_tables(self.ledger.tables)
        counts = self.ledger.tables.counts()
        assert consumers.progress(self.columns, self.ledger)["trainer"] == ColumnProgress(
            counts.get("ready", 0), counts.get("planned", 0), counts.get("trained", 0)
        )

    def teardown(self) -> None:
        """Without further faults, the run gets on from wherever it stands."""
        trained = len(self.trained)
        for _ in range(40):
            for ticket in self.lease_tickets(8):
                play(self.ledger, ticket)
            self.settle()
            for role in ("reference", "values"):
                self.leases_columns(role, 1000)
                lease = self.leases.pop(role, ColumnLease())
                answers = {
                    (one.ticket_id, one.attempt): locate(one.ticket_id, role) for one in lease.trajectories
                }
                stage = WorkerId(role, self.lives[role])
                assert self.columns.complete(role, stage, lease.fence, answers) == (0, [])
                self.made |= {(role, *name): where for name, where in answers.items()}
            self.trains("commit")
            if len(self.trained) > trained:
                return
        raise AssertionError(f"stuck: {self.ledger.tables.counts()}, {self.columns.progress()}")


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=60, stateful_step_count=40)


# --- one by one -----------------------------------------------------------------------------


def trained_world(
    untrained: int = 0, stages: Sequence[str] = (REFERENCE,), **changes: Any
) -> tuple[Ledger, ColumnRegistry, list[int]]:
    """Two groups of two, all ready, at version 1, the first `untrained` without a token to train; a stage.

    changes: of the rules.
    """
    rules = dataclasses.replace(RULES, warmup_batches=0, evaluation_episodes=0, staleness=1, **changes)
    columns = ColumnRegistry(stages)
    ledger = Ledger(rules, columns.held_back)
    ledger.tables.run.version = 1
    for name in ("rollout-0", "reference"):
        ledger.membership.join(member(name), 0.0)
    for index in range(2):
        ledger.attempts.issue(Purpose.TRAIN, 2, 1, 1.0, index=index)
    for ticket in ledger.lease("rollout-0", 1, 10, 0.0):
        play(ledger, ticket, 0 if ticket.id <= untrained else 4)
    consumers.follow(columns, ledger)
    return ledger, columns, sorted(ledger.tables.tickets)


def lease(ledger: Ledger, columns: ColumnRegistry) -> ColumnLease:
    return consumers.lease(columns, ledger, "reference", STAGE, 1000)


def finish(ledger: Ledger, columns: ColumnRegistry, numbers: list[int]) -> None:
    fence = lease(ledger, columns).fence
    columns.complete("reference", STAGE, fence, {(number, 1): locate(number) for number in numbers})


def plan(ledger: Ledger, columns: ColumnRegistry):
    consumers.follow(columns, ledger)
    return ledger.plan(
        Purpose.TRAIN, 2, publish=True, checkpoint=False, progress=0.0, first_of_phase=False
    )  # fmt: skip


def test_only_trajectories_of_protected_environments_wait_for_the_stage():
    ledger, columns, _ = trained_world(reference_for=frozenset({"another"}))
    assert not lease(ledger, columns).trajectories
    batch = plan(ledger, columns)
    assert batch is not None
    assert set(columns.locations("reference", batch.tickets).values()) == {NOWHERE}
    ledger, columns, numbers = trained_world(reference_for=frozenset({""}))
    assert plan(ledger, columns) is None
    assert len(lease(ledger, columns).trajectories) == len(numbers)


def test_a_batch_waits_until_all_its_members_have_references():
    ledger, columns, numbers = trained_world()
    assert plan(ledger, columns) is None
    finish(ledger, columns, numbers[:-1])
    assert plan(ledger, columns) is None
    assert consumers.progress(columns, ledger) == {
        "reference": ColumnProgress(1, 0, 3),
        "trainer": ColumnProgress(4, 0, 0),
    }
    finish(ledger, columns, numbers[-1:])
    batch = plan(ledger, columns)
    assert batch is not None and sorted(batch.tickets) == numbers
    handed_out = split_batch(
        batch, ledger.tables.tickets, 1, "mean", {REFERENCE: columns.locations(REFERENCE, numbers)}
    )
    assert {
        item.ticket_id: Location(column.keys, column.offset)
        for item in handed_out.ranks[0]
        for column in item.columns
        if column.role == REFERENCE
    } == {number: locate(number) for number in numbers}
    # Trained, it is forgotten.
    ledger.commit(batch.id, 2)
    consumers.follow(columns, ledger)
    assert not columns.held_back and not columns.locations("reference", numbers)
    assert consumers.progress(columns, ledger) == {
        "reference": ColumnProgress(),
        "trainer": ColumnProgress(0, 0, 4),
    }


def test_a_run_without_stages_holds_nothing_back():
    ledger, columns, numbers = trained_world(stages=())
    batch = plan(ledger, columns)
    assert batch is not None and sorted(batch.tickets) == numbers
    assert not columns.locations("reference", numbers) and not consumers.progress(columns, ledger)


def test_a_planned_batch_waits_for_what_is_recalled_and_for_a_stage_that_died():
    ledger, columns, numbers = trained_world()
    finish(ledger, columns, numbers)
    batch = plan(ledger, columns)
    assert batch is not None and not consumers.must_wait(columns, ledger)
    columns.recall(batch.tickets)
    assert consumers.must_wait(columns, ledger)
    finish(ledger, columns, numbers)
    assert not consumers.must_wait(columns, ledger)
    ledger.membership.leave("reference", "it died")
    consumers.follow(columns, ledger)
    assert consumers.must_wait(columns, ledger) and all(map(columns.lacks, numbers))
    assert ledger.hand_out_planned() is batch


def test_lost_columns_are_played_again():
    ledger, columns, numbers = trained_world()
    _, gone = columns.complete("reference", STAGE, lease(ledger, columns).fence, {}, [(numbers[0], 1)])
    consumers.lose(ledger, gone)
    assert ledger.tables.tickets[numbers[0]].state is TicketState.PENDING
    finish(ledger, columns, numbers[1:])
    assert not columns.lacks(numbers[0]) and columns.progress() == {"reference": ColumnProgress(0, 0, 3)}


def test_lost_columns_of_a_planned_batch_dissolve_it_when_it_is_asked_for():
    ledger, columns, numbers = trained_world()
    finish(ledger, columns, numbers)
    batch = plan(ledger, columns)
    assert batch is not None
    columns.recall(batch.tickets)
    _, gone = columns.complete("reference", STAGE, lease(ledger, columns).fence, {}, [(numbers[1], 1)])
    consumers.lose(ledger, [*gone, *gone])
    assert batch.lost == [numbers[1]]
    # Waiting would be in vain.
    assert not consumers.must_wait(columns, ledger)
    assert ledger.hand_out_planned() is None
    assert ledger.tables.tickets[numbers[1]].state is TicketState.PENDING
    assert ledger.tables.tickets[numbers[0]].state is TicketState.READY


def test_sequences_without_a_trained_token_want_no_reference():
    ledger, columns, numbers = trained_world(untrained=1)
    assert [one.ticket_id for one in lease(ledger, columns).trajectories] == numbers[1:]
    finish(ledger, columns, numbers[1:])
    assert plan(ledger, columns) is not None
    assert columns.locations("reference", numbers[:1]) == {numbers[0]: NOWHERE}


def test_a_restarted_schedulers_fences_are_newer_than_its_predecessors():
    ledger, columns, numbers = trained_world()
    old = lease(ledger, columns)
    image = Image()
    image.apply(ledger.tables.take_changes())
    again = Ledger.restored(ledger.rules, image.peek(), 0.0)
    columns = ColumnRegistry([REFERENCE])
    answers = {(number, 1): Location(("old",)) for number in numbers}
    assert lease(again, columns).fence > old.fence
    assert columns.complete("reference", STAGE, old.fence, answers) == (4, [])
    assert not columns.locations("reference", numbers)
