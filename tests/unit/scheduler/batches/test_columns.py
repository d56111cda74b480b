"""The columns against a simple oracle: nothing lost, nothing twice, whatever stages and the ledger do."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.scheduler.batches.columns import (
    NOWHERE,
    ColumnLease,
    ColumnProgress,
    ColumnRegistry,
    Location,
    TrajectoryRef,
)
from services.scheduler.state.workers import WorkerId

STAGES = ("reference", "score", "values")
NAMES = st.sampled_from(STAGES)
GROUP = 3
STAGE = WorkerId("reference", 1)


def trajectory(number: int, attempt: int = 1, tokens: int = 10, trained: int = 4) -> TrajectoryRef:
    key = f"trajectory/{number}/{attempt}"
    return TrajectoryRef(number, attempt, number // GROUP, key, tokens, trained)


class ColumnRegistryMachine(RuleBasedStateMachine):
    """Hypothesis plays ledger and stages; the oracle knows what lives, what is held and what was done."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = ColumnRegistry(STAGES)
        self.live: dict[int, TrajectoryRef] = {}
        # By role: who serves it, its valid fence, what it holds, and what it has done.
        self.stage = {role: WorkerId(role, 1) for role in STAGES}
        self.known: dict[str, WorkerId | None] = dict.fromkeys(self.stage)
        self.fence = dict.fromkeys(self.stage, 0)
        self.leased: dict[str, dict[int, TrajectoryRef]] = {name: {} for name in self.stage}
        self.done: dict[str, dict[int, Location]] = {name: {} for name in self.stage}
        self.next, self.fences, self.calls = 1, 0, 0

    # --- the oracle -------------------------------------------------------------------------

    def able(self, role: str) -> list[int]:
        """Returns what may be leased, oldest first."""
        free = self.live.keys() - self.leased[role].keys() - self.done[role].keys()
        return sorted(free)

    def admit(self, one: TrajectoryRef) -> None:
        self.live[one.ticket_id] = one
        if not one.trained_tokens:
            for role in STAGES:
                self.done[role][one.ticket_id] = NOWHERE

    def drop(self, number: int) -> None:
        for held in (self.live, *self.leased.values(), *self.done.values()):
            held.pop(number, None)

    def unmake(self, role: str, numbers: list[int]) -> None:
        for number in numbers:
            if self.done[role].get(number, NOWHERE) != NOWHERE:
                del self.done[role][number]

    def lose_stage(self, role: str) -> None:
        self.leased[role] = {}
        self.unmake(role, list(self.done[role]))

    # --- the ledger -------------------------------------------------------------------------

    @rule(count=st.integers(1, 4), tokens=st.integers(1, 30), trained=st.sampled_from([0, 1, 1, 1]))
    def comes(self, count: int, tokens: int, trained: int) -> None:
        for _ in range(count):
            one = trajectory(self.next, tokens=tokens, trained=trained)
            self.admit(one)
            self.columns.put(one)
            self.columns.put(replace(one))  # told twice
            self.next += 1

    @rule(which=st.randoms(use_true_random=False), again=st.booleans(), told=st.booleans())
    def goes(self, which: random.Random, again: bool, told: bool) -> None:
        """Trained, dropped, or played again; told: the registry hears of it before its next attempt."""
        if not self.live:
            return
        number = which.choice(sorted(self.live))
        former = self.live[number]
        self.drop(number)
        if told or not again:
            self.columns.forget(number)
            self.columns.forget(number)
        if again:
            one = trajectory(number, former.attempt + 1, former.total_tokens, which.choice([0, 5]))
            self.admit(one)
            self.columns.put(one)

    # --- stages -----------------------------------------------------------------------------

    @rule(role=NAMES, credit=st.integers(0, 60), which=st.randoms(use_true_random=False))
    def lease(self, role: str, credit: int, which: random.Random) -> None:
        if self.known[role] != self.stage[role]:
            self.lose_stage(role)
            self.known[role] = self.stage[role]
        self.leased[role] = {}
        first = {number for number in range(1, self.next) if which.random() < 0.1}
        self.fences += which.randint(1, 3)
        lease = self.columns.lease(role, self.stage[role], self.fences, credit, first)
        taken = [one.ticket_id for one in lease.trajectories]
        order = sorted(self.able(role), key=lambda number: (number not in first, number))
        assert taken == order[: len(taken)]
        spent = sum(one.total_tokens for one in lease.trajectories)
        assert spent <= credit
        # None was passed over, and none was left that would have fitted.
        assert len(taken) == len(order) or spent + self.live[order[len(taken)]].total_tokens > credit
        if taken:
            assert lease.fence == self.fences > self.fence[role]
            self.fence[role] = lease.fence
        assert all(self.live[one.ticket_id] == one for one in lease.trajectories)
        self.leased[role] = {one.ticket_id: one for one in lease.trajectories}

    @rule(role=NAMES, which=st.randoms(use_true_random=False), again=st.booleans())
    def complete(self, role: str, which: random.Random, again: bool) -> None:
        if self.known[role] != self.stage[role]:
            return
        held = list(self.leased[role].values())
        results = [one for one in held if which.random() < 0.7]
        lost = [one for one in held if one not in results and which.random() < 0.5]
        self.calls += 1
        answers = {
            (one.ticket_id, one.attempt): Location((f"{role}/{self.calls}",), 7 * one.ticket_id)
            for one in results
        }
        names = [(one.ticket_id, one.attempt) for one in lost]
        refused, gone = self.columns.complete(role, self.stage[role], self.fence[role], answers, names)
        assert refused == 0
        for one in results:
            self.done[role][one.ticket_id] = answers[one.ticket_id, one.attempt]
        self.leased[role] = {}
        assert gone == lost
        if again:
            assert self.columns.complete(role, self.stage[role], self.fence[role], answers, names) == (0, [])

    @rule(role=NAMES, age=st.integers(1, 3), foreign=st.booleans())
    def complete_late(self, role: str, age: int, foreign: bool) -> None:
        """Results under an old fence, or of a stage that is gone, change nothing."""
        stage = WorkerId(role, -1) if foreign else self.stage[role]
        fence = self.fence[role] if foreign else self.fence[role] - age
        answers = {(one.ticket_id, one.attempt): Location(("stolen",)) for one in self.live.values()}
        refused, gone = self.columns.complete(role, stage, fence, answers, list(answers))
        assert (refused, gone) == (len(answers), [])

    @rule(role=NAMES, which=st.randoms(use_true_random=False))
    def complete_strange(self, role: str, which: random.Random) -> None:
        """Reports what was not leased, for another attempt, or without a key; the lease ends all the same."""
        if self.known[role] != self.stage[role] or not self.fence[role]:
            return
        answers: dict[tuple[int, int], Location] = {}
        for number in range(1, self.next + 2):
            one = self.leased[role].get(number)
            if one is None and self.done[role].get(number) != NOWHERE:
                attempt = self.live[number].attempt if number in self.live else 1
                answers[number, attempt] = Location(("strange",))
            elif one is not None:
                other = number, one.attempt + which.choice([-1, 1])
                answers[other] = Location(("strange",))
                answers[number, one.attempt] = NOWHERE
        refused, gone = self.columns.complete(role, self.stage[role], self.fence[role], answers)
        assert (refused, gone) == (len(answers), [])
        self.leased[role] = {}

    @rule(role=NAMES, told=st.booleans())
    def stage_dies(self, role: str, told: bool) -> None:
        """told: the columns hears of it before the successor asks."""
        self.stage[role] = WorkerId(role, self.stage[role].incarnation + 1)
        if told:
            self.columns.left(role)
            self.lose_stage(role)
            self.known[role] = None

    # --- trainer and scheduler --------------------------------------------------------------

    @rule(which=st.randoms(use_true_random=False))
    def recall(self, which: random.Random) -> None:
        numbers = [number for number in range(1, self.next) if which.random() < 0.3]
        self.columns.recall(numbers)
        for role in STAGES:
            self.unmake(role, numbers)

    @rule()
    def scheduler_restarts(self) -> None:
        """Its successor's columns is empty, and hears from the ledger what lives."""
        self.columns = ColumnRegistry(STAGES)
        for role in self.stage:
            self.known[role] = None
            self.lose_stage(role)
        for one in self.live.values():
            self.columns.put(one)

    # --- always -----------------------------------------------------------------------------

    @invariant()
    def columns_lie_where_stages_said(self) -> None:
        everything = range(self.next + 1)
        for role in STAGES:
            assert self.columns.locations(role, everything) == self.done[role]
        assert self.columns.locations("unheard of", everything) == {}

    @invariant()
    def each_role_is_as_far_as_it_said(self) -> None:
        assert self.columns.progress() == {
            name: ColumnProgress(
                len(self.live) - len(self.leased[name]) - len(self.done[name]),
                len(self.leased[name]),
                len(self.done[name]),
            )
            for name in self.stage
        }
        for role in self.stage:
            waiting = sum(self.live[number].total_tokens for number in self.able(role))
            assert self.columns.waiting_tokens(role) == waiting
        assert self.columns.workers == self.known

    @invariant()
    def groups_are_held_back_whole(self) -> None:
        lacking = {number for number in self.live if any(number not in self.done[role] for role in STAGES)}
        assert {number for number in range(self.next + 1) if self.columns.lacks(number)} == lacking
        assert set(self.columns.held_back) == {self.live[number].group for number in lacking}


TestColumnRegistry = ColumnRegistryMachine.TestCase
TestColumnRegistry.settings = settings(max_examples=60, stateful_step_count=50)


def test_a_planned_batch_goes_first():
    columns = ColumnRegistry(STAGES)
    for number in range(1, 7):
        columns.put(trajectory(number))
    lease = columns.lease("reference", STAGE, 1, 30, first=[5, 4])
    assert [one.ticket_id for one in lease.trajectories] == [4, 5, 1]


def test_an_empty_lease_does_not_end_the_fence_of_the_one_before():
    """Its stage may repeat a call whose answer it did not get."""
    columns = ColumnRegistry(STAGES)
    columns.put(trajectory(1))
    assert columns.lease("reference", STAGE, 1, 100).fence == 1
    answers = {(1, 1): Location(("reference/1",))}
    assert columns.complete("reference", STAGE, 1, answers) == (0, [])
    assert columns.lease("reference", STAGE, 2, 100) == ColumnLease()
    assert columns.complete("reference", STAGE, 1, answers) == (0, [])
