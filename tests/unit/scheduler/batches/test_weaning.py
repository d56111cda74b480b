"""The weight of a teacher in a batch, and its end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.config.run import RunConfig
from earl.parallelism import TEACHER
from services.scheduler.batches.columns import ColumnRegistry, Location, TrajectoryRef
from services.scheduler.batches.run_roles import RunRoles
from services.scheduler.batches.weaning import WeaningRule
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.state.run import Batch, CommittedBatch
from services.scheduler.state.tickets import EpisodeResult, Purpose
from services.scheduler.state.workers import WorkerId
from tests.support.ledger import RULES

REWARDS = st.floats(-1.0, 1.0)
RULE = WeaningRule(until=10, score=0.5, least=-1.0)
STAGE = WorkerId(TEACHER, 1)


@pytest.mark.parametrize(
    ("version", "rewards", "weight"),
    [
        (3, [-1.0, -1.0], 1.0),
        (3, [-0.25, -0.25], 0.5),
        (3, [0.0, 0.25], 0.25),
        (3, [0.5, 0.5], 0.0),
        (3, [1.0], 0.0),
        (9, [-1.0], 1.0),
        (10, [-1.0], 0.0),
        (11, [-1.0], 0.0),
    ],
)
def test_the_weight_falls_with_the_policys_return_until_t0(
    version: int, rewards: list[float], weight: float
) -> None:
    assert RULE.weight(version, rewards) == pytest.approx(weight)


@given(st.lists(REWARDS, min_size=1, max_size=8), REWARDS, st.floats(-0.9, 1.0))
def test_a_better_policy_never_needs_its_teacher_more(rewards: list[float], more: float, score: float):
    rule = WeaningRule(score=score, least=-1.0)
    weight = rule.weight(1, rewards)
    assert 0.0 <= weight <= 1.0
    better = [max(reward, more) for reward in rewards]
    assert rule.weight(1, better) <= weight + 1e-12
    # Both returns counted from elsewhere are the same rule.
    moved = WeaningRule(score=score + 3.0, least=2.0)
    assert moved.weight(1, [reward + 3.0 for reward in rewards]) == pytest.approx(weight, abs=1e-9)


def test_without_weaning_rewards_change_nothing():
    rule = WeaningRule(until=4)
    assert [rule.weight(version, [1.0]) for version in (1, 3, 4)] == [1.0, 1.0, 0.0]
    assert WeaningRule().weight(1 << 30, [1.0]) == 1.0
    assert [rule.ends(version, 1.0) for version in (1, 2, 3)] == [False, False, True]
    assert rule.ends(1, 0.0)


def run_of(**teacher: object) -> RunConfig:
    environment = {"name": "e", "reward_range": [-1, 1]}
    section = {"path": "somewhere", "wean": True, "score": 1.0, **teacher}
    return RunConfig.model_validate({"name": "t", "environment": environment, "teacher": section})


def test_the_rule_is_the_run_files():
    assert WeaningRule.of(run_of(until=7)) == WeaningRule(7, 1.0, -1.0)
    assert WeaningRule.of(run_of(wean=False)) == WeaningRule(0, None, 0.0)
    assert WeaningRule.of(run_of(path="", wean=False)) is None


class World:
    """Roles beside a ledger without tickets; columns of one trajectory, which the teacher is to compute."""

    def __init__(self, **teacher: object) -> None:
        self.ledger = Ledger(RULES)
        self.columns = ColumnRegistry([TEACHER])
        self.roles = RunRoles(run_of(**teacher), self.ledger, self.columns)
        self.columns.put(TrajectoryRef(1, 1, 1, "trajectory/1/1", 8, 4))

    def batch(self, version: int, purpose: Purpose = Purpose.TRAIN) -> Batch:
        return Batch(
            id=version, version=version, purpose=purpose, tickets=[], publish=True, checkpoint=False,
            progress=0.0, first_of_phase=False,
        )  # fmt: skip

    def commit(self, version: int, *rewards: float, purpose: Purpose = Purpose.TRAIN) -> bool:
        """Returns whether the teacher has ended with this batch."""
        results = [EpisodeResult(reward=reward) for reward in rewards]
        self.roles.committed(CommittedBatch(self.batch(version, purpose), results, [""] * len(results)))
        return TEACHER in self.columns.ended


def test_a_policy_that_reached_its_teacher_is_weaned_for_good():
    world = World()
    assert not world.commit(1, 1.0, purpose=Purpose.WARMUP), "play of a warm-up tells nothing"
    assert not world.commit(2, 0.5, 1.0)
    assert world.columns.lacks(1) and list(world.columns.held_back) == [1]
    assert world.commit(3, 1.0, 1.0)
    # Nothing waits for it any more, what comes later included.
    assert not world.columns.lacks(1) and not world.columns.held_back
    world.columns.put(TrajectoryRef(2, 1, 2, "trajectory/2/1", 8, 4))
    assert not world.columns.lacks(2) and world.columns.waiting_tokens(TEACHER) == 0
    refused, gone = world.columns.complete(TEACHER, STAGE, 1, {(2, 1): Location(("k",))})
    assert (refused, gone) == (1, [])
    # A worse batch does not bring it back, and neither does another scheduler.
    assert world.roles.planned(world.batch(4)) == ({}, 0.0)
    columns = ColumnRegistry([TEACHER])
    RunRoles(run_of(), world.ledger, columns)
    assert columns.ended == {TEACHER} and not columns.workers


def test_a_teacher_ends_with_the_last_batch_before_t0():
    world = World(wean=False, until=4)
    assert not world.commit(2, 1.0)
    assert world.roles.planned(world.batch(3)) == ({TEACHER: {}}, 1.0)
    assert world.commit(3, -1.0)
