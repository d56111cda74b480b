"""A curriculum: the same tickets whatever arrives when, is killed or rolled back; and which it prefers."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.ticket_ranges import RangeSet
from services.scheduler.ledger import phases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.state.curriculum import FLOOR, Curriculum, Successes, weight
from services.scheduler.state.mixture import instance_at
from services.scheduler.state.rules import Rules, Share
from services.scheduler.state.seeds import derive
from services.scheduler.state.tickets import (
    Attempt,
    EpisodeResult,
    Purpose,
    Ticket,
)
from services.scheduler.state.workers import WorkerRecord
from tests.support.ledger import RULES, Image
from tests.unit.scheduler.ledger.test_exact_schedule import EXACT, ExactWorld, undisturbed

TASKS = range(0, 24, 2)
HELD_OUT = range(1, 24, 2)
SEVERAL = (
    Share("words", 0.6, 2, train=TASKS, held_out=HELD_OUT, curriculum=True),
    Share("sums", 0.4, 2, train=TASKS, held_out=HELD_OUT),
)
RULES_WITH = dataclasses.replace(EXACT, mixture=SEVERAL, steps=10, batch_groups=4, resample=1)


class CurriculumWorld(ExactWorld):
    """A world in which a policy's successes follow from what is played and by which version."""

    def __init__(self, choices: random.Random, rules: Rules = RULES_WITH) -> None:
        super().__init__(choices, rules)

    def reward(self, ticket: Ticket) -> float:
        chance = (ticket.task % 7) / 6
        word = derive(ticket.env_seed, ticket.sample_seed, ticket.min_version)
        return float(word % 1000 < 1000 * chance)


@pytest.mark.parametrize(("crash_chance", "staleness", "walks"), [(0.0, 0, 12), (0.05, 0, 12), (0.05, 2, 4)])
def test_the_tickets_are_the_same_whatever_happens(crash_chance: float, staleness: int, walks: int) -> None:
    rules = dataclasses.replace(RULES_WITH, staleness=staleness)
    expected = undisturbed(rules, CurriculumWorld)
    assert len(expected) == RULES_WITH.warmup_batches + RULES_WITH.steps
    rolled_back = replaced = 0
    for seed in range(walks):
        world = CurriculumWorld(random.Random(f"{seed} {crash_chance}"), rules)
        world.crash_chance = crash_chance
        world.restart()
        world.wander(150)
        world.finish()
        assert world.batches() == expected
        counts = world.ledger.tables.counts()
        rolled_back += counts.get("dropped:rolled_back", 0)
        replaced += counts.get("dropped:no_signal", 0)
        records = world.ledger.tables.outcomes
        assert {outcome.environment for step in records.values() for outcome in step} == {"words"}
    assert rolled_back > 30 and replaced > 30  # the walks did disturb it


class Run:
    """A ledger with one worker that finishes tickets in any order; killed, it continues from its store."""

    def __init__(self, rules: Rules, image: Image | None = None) -> None:
        self.rules = rules
        self.image = image or Image()
        self.ledger = Ledger.restored(rules, self.image.load(), 0.0)
        self.life = self.ledger.tables.run.trainer_incarnation + 1
        self.ledger.membership.join(WorkerRecord(name="w", incarnation=self.life), 0.0)
        self.ledger.membership.join(WorkerRecord(name="t", incarnation=self.life), 0.0)

    def start(self, version: int, consumed: RangeSet) -> None:
        next_batch = self.ledger.tables.run.next_batch
        reconcile(self.ledger, "t", self.life, version, next_batch, consumed)
        self.store()

    def store(self) -> None:
        phases.advance(self.ledger, 0.0)
        self.image.apply(self.ledger.tables.take_changes())

    def play(self, choices: random.Random, most: int = 1000) -> None:
        """Plays tickets in an order of chance, at most so many."""
        version = self.ledger.tables.run.version
        self.ledger.membership.mark_alive("w", self.life, 0.0, version)
        while most > 0 and (tickets := self.ledger.lease("w", self.life, 1000, 0.0)):
            choices.shuffle(tickets)
            for ticket in tickets[:most]:
                solved = derive(ticket.env_seed, ticket.sample_seed) % 12 < ticket.task
                result = EpisodeResult(
                    reward=float(solved), total_tokens=9, trained_tokens=4, oldest_version=version,
                    newest_version=version, descriptor_key=f"k{ticket.id}",
                )  # fmt: skip
                attempt = Attempt(ticket.id, ticket.attempt, ticket.fence)
                self.ledger.attempts.complete("w", self.life, attempt, result)
            most -= len(tickets)
            self.store()

    def train(self) -> list[tuple[int, str, int, int]] | None:
        """Trains the next batch: what it was of."""
        batch = phases.next_batch(self.ledger, 0.0)
        if batch is None:
            return None
        tickets = [self.ledger.tables.tickets[number] for number in batch.tickets]
        described = [(one.index, one.environment, one.task, one.sample_seed) for one in tickets]
        self.ledger.commit(batch.id, batch.version + 1)
        self.store()
        return described


ALONE = dataclasses.replace(
    RULES, warmup_batches=0, evaluation_episodes=0, staleness=0, steps=8, batch_groups=3, group_size=3,
    mixture=(Share(train=tuple(range(10)), held_out=(99,), curriculum=True),),
)  # fmt: skip


def whole_run(rules: Rules, seed: int, kills: set[int]) -> list[list[tuple[int, str, int, int]]]:
    """The batches of a run whose episodes end in an order of chance; killed and resumed in these steps."""
    choices = random.Random(seed)
    run, consumed = Run(rules), RangeSet()
    run.start(1, consumed)
    batches = []
    for step in range(rules.steps):
        if step in kills:
            run.play(choices, choices.randrange(1, 9))
            run = Run(rules, run.image)
            run.start(step + 1, consumed)
        run.play(choices)
        batch = run.train()
        assert batch is not None
        batches.append(batch)
        trained = run.ledger.tables.tickets.values()
        consumed = consumed | RangeSet.of(one.id for one in trained if one.state == "trained")
    return batches


@settings(max_examples=20)
@given(st.integers(0, 1 << 30), st.sets(st.integers(0, 7)), st.sampled_from([0, 2]))
def test_any_order_of_arrival_and_a_kill_in_mid_epoch_give_the_same_tickets(
    seed: int, kills: set[int], resample: int
) -> None:
    rules = dataclasses.replace(ALONE, resample=resample)
    batches = whole_run(rules, seed, kills)
    assert batches == whole_run(rules, 0, set())
    for batch in batches:
        assert all(task in range(10) for _, _, task, _ in batch)
        if not resample:
            assert len({task for _, _, task, _ in batch}) == rules.batch_groups


def test_a_batch_that_was_not_seen_committed_counts_when_its_manifest_is_restored() -> None:
    choices = random.Random(1)
    seen, unseen = Run(ALONE), Run(ALONE)
    for run in (seen, unseen):
        run.start(1, RangeSet())
        run.play(choices)
    assert seen.train() is not None
    batch = phases.next_batch(unseen.ledger, 0.0)
    assert batch is not None
    unseen.store()
    after = Run(ALONE, unseen.image)
    after.start(2, RangeSet.of(batch.tickets))
    assert dict(after.ledger.tables.outcomes) == dict(seen.ledger.tables.outcomes)
    after.start(2, RangeSet.of(batch.tickets))
    assert dict(after.ledger.tables.outcomes) == dict(seen.ledger.tables.outcomes)


def test_a_rolled_back_step_counts_no_longer_and_its_replaced_groups_do() -> None:
    run = Run(dataclasses.replace(ALONE, resample=2))
    run.start(1, RangeSet())
    for _ in range(3):
        run.play(random.Random(2))
        assert run.train() is not None
    before = dict(run.ledger.tables.outcomes)
    assert {outcome.trained for step in before.values() for outcome in step} == {True, False}
    again = Run(run.rules, run.image)
    again.start(1, RangeSet())
    kept = {
        step: replaced
        for step, outcomes in before.items()
        if (replaced := tuple(outcome for outcome in outcomes if not outcome.trained))
    }
    assert dict(again.ledger.tables.outcomes) == kept


def rates(solved: dict[int, float]) -> Curriculum:
    """A curriculum of tasks with these success rates, in 20 episodes each."""
    return Curriculum(lambda label, step, task: Successes(round(20_000 * solved[task]), 20))


def test_tasks_neither_solved_nor_hopeless_are_preferred_and_each_comes_back() -> None:
    curriculum = rates({0: 0.0, 1: 0.5, 2: 1.0, 3: 0.9})
    drawn = Counter(curriculum.task("", range(4), seed, 0, 0, 0) for seed in range(4000))
    weights = {task: weight(Successes(thousandths, 20)) for task, thousandths in
               {0: 0, 1: 10_000, 2: 20_000, 3: 18_000}.items()}  # fmt: skip
    for task, count in drawn.items():
        assert abs(count / 4000 - weights[task] / sum(weights.values())) < 0.03
    assert min(drawn.values()) > 4000 * FLOOR / 4
    assert weight(Successes()) == 1.0


@settings(max_examples=40)
@given(st.integers(0, 1 << 30), st.integers(1, 12), st.integers(1, 12))
def test_no_task_is_drawn_twice_for_a_step_while_there_are_others(seed: int, tasks: int, groups: int) -> None:
    curriculum = rates({task: task / tasks for task in range(tasks)})
    drawn = [curriculum.task("", range(tasks), seed, 0, number, 0) for number in range(groups)]
    assert len(set(drawn)) == min(tasks, groups)
    again = [curriculum.task("", range(tasks), seed, 0, number, 0) for number in reversed(range(groups))]
    assert again[::-1] == drawn
    taken = [curriculum.task("", range(tasks), seed, 0, 0, take) for take in range(tasks)]
    assert sorted(taken) == list(range(tasks))


@settings(max_examples=20)
@given(st.integers(0, 1 << 30))
def test_no_evaluation_task_is_trained(seed: int) -> None:
    rules = dataclasses.replace(RULES_WITH, seed=seed)
    for place in range(60):
        assert instance_at(rules, Purpose.TRAIN, place, place % 3).task in TASKS
        assert instance_at(rules, Purpose.EVALUATE, place).task in HELD_OUT
