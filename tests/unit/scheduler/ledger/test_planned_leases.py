"""Leases as they are planned: to whom, when none is planned, and that nothing else of the ledger changes."""

from __future__ import annotations

import dataclasses
import random

import pytest
from msgspec.structs import replace

from earl.parallelism import NUMBERED_STAGES, ROLLOUT, Parallelism
from earl.ticket_ranges import RangeSet
from services.scheduler.assign.cost import DecodeCost
from services.scheduler.assign.plan import EngineKind
from services.scheduler.ledger import phases, planned_leases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.pending import PendingTickets
from services.scheduler.ledger.planned_leases import PlannedLeases
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state.mixture import Share
from services.scheduler.state.tickets import Purpose, Ticket, TicketState
from services.scheduler.state.workers import WorkerRecord
from tests.support.ledger import RULES, Rollout, World
from tests.unit.scheduler.ledger.test_exact_schedule import EXACT, ExactWorld, undisturbed

STAGE = NUMBERED_STAGES.index(ROLLOUT) + 1
SLOTS = 2
PLANNED = dataclasses.replace(
    RULES, warmup_batches=1, steps=8, batch_groups=4, evaluate_every_steps=2, staleness=1,
    longest_first=True, mixture=(Share(train=tuple(range(8)), held_out=(8, 9, 10)),),
)  # fmt: skip


def kind(parallelism: Parallelism) -> EngineKind | None:
    """Steps of a larger tp are quicker."""
    step_s = 5e-3 / parallelism.tp
    return EngineKind(DecodeCost(step_s, 4e-5, 4e-8, 4e-5), SLOTS * parallelism.tp)


def worker(name: str, dp: int = 1, tp: int = 1) -> WorkerRecord:
    return WorkerRecord(
        name=name, incarnation=1, stage=STAGE, capacity=SLOTS * dp * tp, parallelism=(dp, tp, 1, 1)
    )


def waiting(lengths: list[int], first: int = 1) -> list[Ticket]:
    return [
        Ticket(
            id=number,
            group=number,
            purpose=Purpose.TRAIN,
            index=number - 1,
            env_seed=1,
            sample_seed=1,
            min_version=1,
            temperature=1.0,
            predicted_tokens=length,
        )
        for number, length in enumerate(lengths, first)
    ]


class Fleet:
    """Tables in which tickets wait, workers of these names, and the plan of their leases."""

    def __init__(self, tickets: list[Ticket], *workers: WorkerRecord, factor: float | None = 1.2) -> None:
        self.tables = LedgerTables(PendingTickets(64))
        self.factor = factor
        self.tables.admit(tickets)
        for each in workers:
            self.tables.workers[each.name] = each
        self.planned = PlannedLeases(PLANNED, self.tables, kind, lambda: self.factor)
        self.fence = 0

    def lease(self, name: str, credit: int, now: float = 0.0) -> list[int]:
        """Leases as TicketAttempts.lease does."""
        numbers = []
        record = self.tables.workers[name]
        for ticket in self.tables.pending.deal(credit, lambda: 0.5, self.planned.of(record, now)):
            for member in self.tables.match(ticket):
                self.fence += 1
                self.tables.move(
                    member, TicketState.LEASED, fence=self.fence, attempt=1, worker=name, incarnation=1
                )
                self.tables.lease_since[member.id] = now
                numbers.append(member.id)
        return numbers


def test_long_groups_are_for_the_worker_of_the_larger_tp() -> None:
    fleet = Fleet(waiting([100] * 20 + [30_000, 29_000]), worker("a", dp=2), worker("b", tp=2))
    short, long = fleet.lease("a", 4), fleet.lease("b", 4)
    assert {21, 22} <= set(long) and not {21, 22} & set(short)


def test_each_ticket_has_an_engine_where_a_worker_has_several() -> None:
    fleet = Fleet(waiting([9_000, 8_000, 400, 300]), worker("a", dp=2), worker("b"))
    leased = [fleet.tables.tickets[number] for number in fleet.lease("a", 4)]
    places = [fleet.planned.engine(ticket) for ticket in leased]
    assert leased and all(place in (0, 1) for place in places) and len(set(places)) == 2
    (other,) = fleet.lease("b", 1, now=20.0)[:1] or [0]
    assert not other or fleet.planned.engine(fleet.tables.tickets[other]) is None


def test_a_worker_that_asks_alone_gets_everything() -> None:
    fleet = Fleet(waiting(list(range(100, 4_000, 300))), worker("a"), worker("b"))
    taken: list[int] = []
    for turn in range(40):
        for number in fleet.lease("a", SLOTS, now=0.1 * turn):
            taken.append(number)
            fleet.tables.move(fleet.tables.tickets[number], TicketState.DROPPED, "phase_over")
    assert sorted(taken) == list(range(1, 14)) and fleet.planned.taken > 0


@pytest.mark.parametrize(
    "fleet",
    [
        Fleet(waiting([500, 9_000, 100]), worker("a"), worker("b"), factor=None),
        Fleet(waiting([500, 9_000, 100]), worker("a"), worker("b"), factor=9.0),
        Fleet(waiting([500, 9_000, 100]), worker("a")),
        Fleet(waiting([700, 700, 700]), worker("a"), worker("b")),
    ],
)
def test_otherwise_the_longest_are_first(fleet: Fleet) -> None:
    plan = fleet.planned.of(fleet.tables.workers["a"], 0.0)
    assert plan is None or not plan.covers(fleet.tables.tickets[1])
    assert fleet.lease("a", 1) == [min(fleet.tables.tickets, key=lambda n: (-length(fleet, n), n))]


def length(fleet: Fleet, number: int) -> int:
    return fleet.tables.tickets[number].predicted_tokens


def test_a_plan_follows_workers_that_come_go_and_change_their_engines() -> None:
    fleet = Fleet(waiting(list(range(100, 4_000, 300))), worker("a"), worker("b"))
    fleet.lease("a", 1)
    fleet.tables.workers["a"] = worker("a", dp=2)
    plan = fleet.planned.of(fleet.tables.workers["a"], 1.0)
    assert plan is not None and len(plan._engines) == 2
    fleet.tables.workers["c"] = worker("c")
    assert fleet.planned.of(fleet.tables.workers["c"], 1.1) is not None
    del fleet.tables.workers["b"], fleet.tables.workers["c"]
    assert fleet.lease("a", 4, now=2.0)


def test_a_match_counts_for_one_engine_with_all_its_seats() -> None:
    tickets = []
    for number, each in enumerate(waiting([900, 900, 800, 800, 100, 100])):
        match = number // 2
        tickets.append(replace(each, seat=number % 2, seats=2, index=match, group=match))
    fleet = Fleet(tickets, worker("a", dp=2), worker("b"))
    leased = fleet.lease("a", 1)
    assert len(leased) == 2 and leased[1] == leased[0] + 1
    assert len({fleet.planned.engine(fleet.tables.tickets[number]) for number in leased}) == 1


class PlannedWorld(World):
    """A world whose workers have different engines."""

    kinds = staticmethod(kind)

    def member(self, rollout: Rollout) -> WorkerRecord:
        return planned_member(rollout)


class PlannedExactWorld(ExactWorld):
    kinds = staticmethod(kind)

    def member(self, rollout: Rollout) -> WorkerRecord:
        return planned_member(rollout)


def planned_member(rollout: Rollout) -> WorkerRecord:
    parallelism = (2, 1, 1, 1) if rollout.name.endswith("0") else (1, 2, 1, 1)
    return WorkerRecord(
        name=rollout.name, incarnation=rollout.incarnation, stage=STAGE, capacity=4, parallelism=parallelism
    )


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Plans however wrong predictions are; the numbers of tickets that were placed."""
    monkeypatch.setattr(planned_leases, "MOST_FACTOR", float("inf"))
    placed: list[int] = []
    place = PlannedLeases.place

    def noted(self: PlannedLeases, tickets: range, engine: int, *, taken: bool) -> None:
        placed.extend(tickets)
        place(self, tickets, engine, taken=taken)

    monkeypatch.setattr(PlannedLeases, "place", noted)
    return placed


@pytest.mark.parametrize("staleness", [1, 3])
def test_no_plan_makes_anything_staler_or_trained_twice(always: list[int], staleness: int) -> None:
    # The world compares each batch that is trained with the bound, and what is kept with what is stored.
    for seed in range(3):
        world = PlannedWorld(random.Random(seed), dataclasses.replace(PLANNED, staleness=staleness))
        world.crash_chance = 0.05
        world.restart()
        world.wander(80)
        world.finish()
    assert always


def test_a_deterministic_run_trains_on_the_same_tickets_with_a_plan(always: list[int]) -> None:
    rules = dataclasses.replace(
        EXACT, longest_first=True, batch_groups=4, resample=1,
        mixture=(Share(train=tuple(range(12)), held_out=(12, 13)),),
    )  # fmt: skip
    expected = undisturbed(dataclasses.replace(rules, longest_first=False))
    for seed in range(2):
        world = PlannedExactWorld(random.Random(seed), rules)
        world.crash_chance = 0.05
        world.restart()
        world.wander(80)
        world.finish()
        assert world.batches() == expected
    assert always


def test_of_a_deterministic_run_one_batch_is_planned_at_a_time() -> None:
    rules = dataclasses.replace(PLANNED, deterministic=True)
    tickets = waiting([500, 400]) + [
        replace(each, index=64 + each.id) for each in waiting([900, 800], first=3)
    ]
    fleet = Fleet(tickets, worker("a"), worker("b"))
    fleet.planned = PlannedLeases(rules, fleet.tables, kind, lambda: 1.2)
    plan = fleet.planned.of(fleet.tables.workers["a"], 0.0)
    assert plan is not None and plan.covers(tickets[0]) and not plan.covers(tickets[2])


def test_a_ledger_without_kinds_plans_nothing() -> None:
    ledger = Ledger(dataclasses.replace(PLANNED, warmup_batches=0, evaluation_episodes=0))
    ledger.membership.join(WorkerRecord(name="t", incarnation=1), 0.0)
    reconcile(ledger, "t", 1, 1, 1, RangeSet())
    phases.advance(ledger, 0.0)
    assert ledger.planned is None and ledger.attempts.planned is None
