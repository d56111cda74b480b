"""The reference desk: nothing lost, nothing twice, whatever the stage and the ledger do."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.scheduler import reference
from services.scheduler.ledger import Ledger
from services.scheduler.plans import cut
from services.scheduler.records import Attempt, Ending, Member, Purpose, Result, State
from services.scheduler.reference import Column, ReferenceDesk, Want
from tests.support.ledger import RULES

STAGE = ("reference", 1)


def want(number: int, attempt: int = 1, tokens: int = 10) -> Want:
    return Want(number, attempt, f"trajectory/{number}/{attempt}", tokens)


def column(one: Want) -> Column:
    return Column((f"reference/{one.attempt}/0", f"reference/{one.attempt}/1"), 10 * one.ticket_id)


class DeskMachine(RuleBasedStateMachine):
    """Hypothesis plays ledger and stage; `done` is what a batch may rely on, known independently."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = ReferenceDesk()
        self.wants: dict[int, Want] = {}
        self.stage = STAGE
        self.lives = True
        self.leased: dict[int, Want] = {}
        self.fence = 0
        self.done: dict[int, Column] = {}
        self.next = 1

    def follow(self) -> None:
        if not self.lives and self.desk.stage is not None:
            self.done, self.leased = {}, {}
        self.desk.follow(self.wants, self.lives)

    @rule(count=st.integers(1, 4), tokens=st.integers(1, 30))
    def ready(self, count: int, tokens: int) -> None:
        for _ in range(count):
            self.wants[self.next] = want(self.next, tokens=tokens)
            self.next += 1
        self.follow()

    @rule(which=st.randoms(use_true_random=False), retried=st.booleans())
    def gone(self, which: random.Random, retried: bool) -> None:
        """Dropped, trained, or played again."""
        if not self.wants:
            return
        number = which.choice(sorted(self.wants))
        former = self.wants.pop(number)
        if retried:
            self.wants[number] = want(number, former.attempt + 1)
        self.done.pop(number, None)
        self.leased.pop(number, None)
        self.follow()

    @rule(credit=st.integers(0, 60))
    def take(self, credit: int) -> None:
        if self.desk.stage != self.stage:
            self.done = {}
        self.lives = True
        before = self.desk.fence
        taken = self.desk.take(self.stage, credit)
        assert self.desk.fence > before
        assert sum(one.total_tokens for one in taken) <= credit
        missing = self.wants.keys() - self.done.keys()
        # Oldest first, none passed over.
        assert [one.ticket_id for one in taken] == sorted(missing)[: len(taken)]
        assert taken or not missing or self.wants[min(missing)].total_tokens > credit
        self.leased, self.fence = {one.ticket_id: one for one in taken}, self.desk.fence

    @rule(which=st.randoms(use_true_random=False), again=st.booleans())
    def complete(self, which: random.Random, again: bool) -> None:
        if not self.lives or self.desk.stage != self.stage:
            return
        held = list(self.leased.values())
        results = [one for one in held if which.random() < 0.6]
        lost = [one for one in held if one not in results and which.random() < 0.5]
        answers = {(one.ticket_id, one.attempt): column(one) for one in results}
        names = [(one.ticket_id, one.attempt) for one in lost]
        refused, gone = self.desk.complete(self.stage, self.fence, answers, names)
        assert refused == 0 and gone == lost
        for one in results:
            self.done[one.ticket_id] = column(one)
        self.leased = {}
        if again:
            assert self.desk.complete(self.stage, self.fence, answers, names) == (0, [])

    @rule(age=st.integers(1, 3), foreign=st.booleans())
    def complete_late(self, age: int, foreign: bool) -> None:
        """Results under an old fence, or of a stage that is gone, change nothing."""
        stage = ("reference", -1) if foreign else self.stage
        fence = self.desk.fence if foreign else self.desk.fence - age
        answers = {(one.ticket_id, one.attempt): Column(("stolen",)) for one in self.wants.values()}
        refused, gone = self.desk.complete(stage, fence, answers, list(answers))
        assert (refused, gone) == (len(answers), [])

    @rule(which=st.randoms(use_true_random=False))
    def recall(self, which: random.Random) -> None:
        numbers = [number for number in self.wants if which.random() < 0.3]
        self.desk.recall(numbers)
        for number in numbers:
            self.done.pop(number, None)

    @rule(told=st.booleans())
    def stage_dies(self, told: bool) -> None:
        """told: the ledger notices before its successor asks."""
        self.stage = ("reference", self.stage[1] + 1)
        self.leased = {}
        if told:
            self.lives = False
            self.follow()

    @invariant()
    def every_want_is_in_one_place(self) -> None:
        parts = (self.desk._waiting.keys(), self.desk._leased.keys(), self.desk._done.keys())
        assert sum(map(len, parts)) == len(set().union(*parts)) == len(self.wants)
        assert set().union(*parts) == self.wants.keys()
        assert self.desk.waiting_tokens == sum(one.total_tokens for one in self.desk._waiting.values())

    @invariant()
    def only_what_is_done_has_a_column(self) -> None:
        if self.desk.stage == self.stage:
            assert self.desk.columns(self.wants) == self.done
            assert self.desk.missing == self.wants.keys() - self.done.keys()


TestDesk = DeskMachine.TestCase
TestDesk.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_planned_batch_goes_first():
    desk = ReferenceDesk()
    desk.follow({number: want(number) for number in range(1, 7)}, stage_lives=False)
    assert [one.ticket_id for one in desk.take(STAGE, 30, first=[5, 4])] == [4, 5, 1]


# --- with the ledger ------------------------------------------------------------------------


def trained_world() -> tuple[Ledger, ReferenceDesk, list[int]]:
    """Two groups of two, all ready, at version 1; and a stage that is a member."""
    rules = dataclasses.replace(RULES, warmup_batches=0, evaluation_episodes=0, staleness=1)
    ledger = Ledger(rules)
    ledger.book.run.version = 1
    for name in ("rollout-0", "reference"):
        ledger.join(Member(name=name, incarnation=1), 0.0)
    for index in range(2):
        ledger.issue(Purpose.TRAIN, 2, 1, 1.0, index=index)
    for ticket in ledger.lease("rollout-0", 1, 10, 0.0):
        result = Result(
            ending=Ending.OK, total_tokens=10, trained_tokens=4, oldest_version=1, newest_version=1,
            descriptor_key=f"trajectory/{ticket.id}/1",
        )  # fmt: skip
        ledger.complete("rollout-0", 1, Attempt(ticket.id, ticket.attempt, ticket.fence), result)
    desk = ReferenceDesk()
    reference.follow(desk, ledger)
    return ledger, desk, sorted(ledger.book.tickets)


def finish(desk: ReferenceDesk, numbers: list[int]) -> None:
    desk.take(STAGE, 1000)
    desk.complete(STAGE, desk.fence, {(number, 1): column(want(number)) for number in numbers}, [])


def plan(ledger: Ledger, desk: ReferenceDesk):
    reference.follow(desk, ledger)
    ledger.held_back = reference.held_back(desk, ledger)
    return ledger.plan(
        Purpose.TRAIN, 2, publish=True, checkpoint=False, progress=0.0, first_of_phase=False
    )  # fmt: skip


def test_a_batch_waits_until_all_its_members_have_references():
    ledger, desk, numbers = trained_world()
    assert plan(ledger, desk) is None
    finish(desk, numbers[:-1])
    assert plan(ledger, desk) is None
    finish(desk, numbers[-1:])
    batch = plan(ledger, desk)
    assert batch is not None and sorted(batch.tickets) == numbers
    found = cut(batch, ledger.book.tickets, 1, "mean", desk.columns(numbers))
    assert {item.ticket_id: item.reference for item in found.ranks[0]} == {
        number: column(want(number)) for number in numbers
    }
    # Trained, it is forgotten.
    ledger.commit(batch.id, 2)
    reference.follow(desk, ledger)
    assert not desk.missing and not desk.columns(numbers)


def test_a_planned_batch_waits_for_what_is_recalled_and_for_a_stage_that_died():
    ledger, desk, numbers = trained_world()
    finish(desk, numbers)
    batch = plan(ledger, desk)
    assert batch is not None and not reference.must_wait(desk, ledger)
    desk.recall(batch.tickets)
    assert reference.must_wait(desk, ledger)
    finish(desk, numbers)
    assert not reference.must_wait(desk, ledger)
    ledger.leave("reference", "it died")
    reference.follow(desk, ledger)
    assert reference.must_wait(desk, ledger) and desk.missing == set(numbers)
    assert ledger.planned() is batch


def test_lost_columns_are_played_again():
    ledger, desk, numbers = trained_world()
    desk.take(STAGE, 1000)
    _, gone = desk.complete(STAGE, desk.fence, {}, [(numbers[0], 1)])
    reference.lose(ledger, gone)
    assert ledger.book.tickets[numbers[0]].state is State.PENDING
    finish(desk, numbers[1:])
    reference.follow(desk, ledger)
    assert numbers[0] not in desk.missing


def test_lost_columns_of_a_planned_batch_dissolve_it_when_it_is_asked_for():
    ledger, desk, numbers = trained_world()
    finish(desk, numbers)
    batch = plan(ledger, desk)
    assert batch is not None
    desk.recall(batch.tickets)
    desk.take(STAGE, 1000)
    _, gone = desk.complete(STAGE, desk.fence, {}, [(numbers[1], 1)])
    reference.lose(ledger, [*gone, *gone])
    assert batch.lost == [numbers[1]]
    # Waiting would be in vain.
    assert not reference.must_wait(desk, ledger)
    assert ledger.planned() is None
    assert ledger.book.tickets[numbers[1]].state is State.PENDING
    assert ledger.book.tickets[numbers[0]].state is State.READY


def test_sequences_without_a_trained_token_want_no_reference():
    ledger, desk, numbers = trained_world()
    result = ledger.book.tickets[numbers[0]].result
    assert result is not None
    result.trained_tokens = 0
    reference.follow(desk, ledger)
    assert desk.missing == set(numbers[1:])
