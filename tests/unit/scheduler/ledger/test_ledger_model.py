"""The ledger's algebra: any order of leases, results, deaths, roll-backs and crashes of the scheduler."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.scheduler.state.rules import Share
from services.scheduler.state.tickets import EpisodeEnding
from tests.support.ledger import RULES, Rollout, World, ids_of

workers = st.sampled_from([0, 1])


def replayed(reuse: int, age: int, order: str = "fifo") -> dict[str, Any]:
    """The rules of a run in which groups are trained again so many times."""
    return {
        "replay_reuse": reuse, "replay_age": age, "replay_groups": 2 * min(1, reuse),
        "replay_capacity": 5 * min(1, reuse), "replay_order": order, "replay_needs_signal": reuse > 1,
    }  # fmt: skip


class LedgerMachine(RuleBasedStateMachine):
    """Hypothesis chooses what happens; the world knows what is true."""

    @initialize(
        seed=st.integers(0, 2**32), staleness=st.integers(0, 3), warmup=st.integers(0, 2),
        members=st.integers(1, 3), extra=st.integers(0, 2), close=st.integers(0, 2), seats=st.integers(1, 3),
        frozen=st.booleans(), reuse=st.integers(0, 2),
    )  # fmt: skip
    def begin(
        self, seed: int, staleness: int, warmup: int, members: int, extra: int, close: int, seats: int,
        frozen: bool, reuse: int,
    ) -> None:  # fmt: skip
        rules = dataclasses.replace(
            RULES, staleness=staleness, warmup_batches=warmup, group_size=members, transcripts=members - 1,
            extra_episodes=extra, close_groups=close, min_group_size=members - 1 if close else 0,
            mixture=(Share(seats=seats, frozen=frozen and seats > 1),), **replayed(reuse, staleness + 2),
        )  # fmt: skip
        self.world = World(random.Random(seed), rules)
        self.world.attempt(self.world.restart)

    def rollout(self, index: int) -> Rollout:
        rollout = self.world.rollouts[index]
        if not rollout.joined:
            self.world.attempt(self.world.join, rollout)
        return rollout

    @rule()
    def play(self) -> None:
        self.world.play()

    @rule(index=workers, credit=st.integers(1, 12), lost=st.sampled_from([False, False, False, True]))
    def lease(self, index: int, credit: int, lost: bool) -> None:
        rollout = self.rollout(index)
        if rollout.joined:
            self.world.attempt(self.world.lease, rollout, credit, lost=lost)

    @rule(index=workers)
    def load(self, index: int) -> None:
        rollout = self.rollout(index)
        if rollout.joined:
            self.world.attempt(self.world.load, rollout)

    @rule(index=workers, forget=st.booleans(), count=st.integers(1, 12))
    def complete(self, index: int, forget: bool, count: int) -> None:
        rollout = self.rollout(index)
        for number in list(rollout.playing)[:count]:
            self.world.attempt(self.world.complete, rollout, number, EpisodeEnding.OK, forget=forget)

    @rule(index=workers, which=st.integers(0, 30), ending=st.sampled_from(list(EpisodeEnding)))
    def complete_one(self, index: int, which: int, ending: EpisodeEnding) -> None:
        rollout = self.rollout(index)
        if rollout.playing:
            numbers = sorted(rollout.playing)
            self.world.attempt(self.world.complete, rollout, numbers[which % len(numbers)], ending)

    @rule(index=workers)
    def kill_rollout(self, index: int) -> None:
        self.world.kill(self.world.rollouts[index])

    @rule(back=st.sampled_from([0, 0, 0, 1]))
    def trainer_starts(self, back: int) -> None:
        self.world.attempt(self.world.trainer_starts, back)

    @precondition(lambda self: self.world.reconciled)
    @rule(manifest_first=st.booleans())
    def train(self, manifest_first: bool) -> None:
        self.world.attempt(self.world.train, manifest_first=manifest_first)

    @rule(which=st.integers(0, 30))
    def lose_file(self, which: int) -> None:
        self.world.lose_file(which)

    @precondition(lambda self: self.world.reconciled and self.world.doubt is None)
    @rule()
    def save(self) -> None:
        self.world.attempt(self.world.save)

    @rule(seconds=st.sampled_from([1.0, 5.0, 11.0, 31.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.attempt(self.world.pass_time, seconds)

    @rule()
    def scheduler_restarts(self) -> None:
        self.world.attempt(self.world.restart)

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
@pytest.mark.parametrize("crash_chance", [0.0, 0.03])
@pytest.mark.parametrize(("seats", "frozen"), [(1, False), (2, False), (2, True)])
def test_long_walks(staleness: int, crash_chance: float, seats: int, frozen: bool) -> None:
    """Long enough for checkpoints, roll-backs and every phase to meet one another."""
    rules = dataclasses.replace(
        RULES, staleness=staleness, warmup_batches=staleness % 2 * 2, steps=8, group_size=2 + staleness % 2,
        mixture=(Share(seats=seats, frozen=frozen),),
    )  # fmt: skip
    trained, seeds = 0, 4 if frozen else 8
    for seed in range(seeds):
        world = World(random.Random(f"{seed} {staleness} {crash_chance}"), rules)
        world.crash_chance = crash_chance
        world.futures_return = seed % 4 == 0
        world.restart()
        world.wander(150)
        trained += len(world.parameters.consumed)
        world.finish()
    assert trained > 8 * seeds  # the walks did get somewhere


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("crash_chance", [0.0, 0.03])
def test_long_walks_in_which_groups_are_trained_again(staleness: int, crash_chance: float) -> None:
    """No source is trained again more often than it may be, nor in parameters that it was not trained in."""
    counts: Counter[str] = Counter()
    for seed in range(8):
        order = "freshest" if seed % 2 else "fifo"
        rules = dataclasses.replace(
            RULES, staleness=staleness, steps=12, group_size=3, **replayed(2, staleness + 3, order)
        )
        world = World(random.Random(f"replay {seed} {staleness}"), rules)
        world.crash_chance = crash_chance
        world.futures_return = seed == 0
        world.restart()
        world.wander(150)
        world.finish()
        counts += Counter(world.ledger.tables.counts())
    assert counts["replayed"] > 8 * 30
    assert counts["dropped:columns_lost"] and counts["dropped:batch_dissolved"]


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("seats", [1, 2])
@pytest.mark.parametrize(
    "keys", [{"extra_episodes": 2}, {"group_size": 3, "min_group_size": 1, "close_groups": 2}], ids="+".join
)
def test_long_walks_with_groups_that_are_closed_early(
    staleness: int, seats: int, keys: dict[str, int]
) -> None:
    """Groups are closed early, before and after crashes; `finish` counts what was trained."""
    rules = dataclasses.replace(RULES, staleness=staleness, steps=8, mixture=(Share(seats=seats),), **keys)
    closed = 0
    for seed in range(6):
        world = World(random.Random(f"early {seed} {staleness}"), rules)
        world.crash_chance = 0.03
        world.restart()
        world.wander(120)
        world.finish()
        closed += len(ids_of(world.ledger.tables, "dropped:closed_early"))
    assert closed > 0


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
