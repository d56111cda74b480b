"""Stages that share devices: one choice for all, which costs and holds what all of them do."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.selector import generate
from earl.errors import ConfigError
from earl.parallelism import Parallelism
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import ProfileTable
from services.scheduler.selector import replay
from services.scheduler.selector.policies import policy_of
from services.scheduler.selector.shared_devices import MOST_CHOICES, Shared, SharedTable

TP1, TP2 = Parallelism(2), Parallelism(1, 2)


def table(stage: str, *rows: tuple[Parallelism, float | None, float | None]) -> ProfileTable:
    """All at 100 tokens and 10 sequences: a rate, None for out of memory, and a fraction."""
    return ProfileTable(
        (ProfileRow(stage, layout, 100, 10, rate, used, rate is None) for layout, rate, used in rows), stage
    )


def renamed(table: ProfileTable, stage: str) -> ProfileTable:
    rows = (
        ProfileRow(stage, row.parallelism, row.context_tokens, row.concurrency, row.tokens_per_device_s,
            row.peak_memory_fraction, row.oom)
        for row in table.rows
    )  # fmt: skip
    return ProfileTable(rows, stage)


def test_seconds_and_memory_are_the_sum():
    shared = SharedTable(
        [
            table("rollout", (TP1, 60.0, 0.3), (TP2, 50.0, 0.2)),
            table("trainer", (TP1, 30.0, 0.6), (TP2, None, None)),
        ]
    )
    first, second, third, fourth = shared.candidates(2)
    assert first == Shared(("rollout", "trainer"), (TP2, TP2)) and str(third) == "rollout dp2 + trainer tp2"
    assert third.replica == (1, 1, 1, 2, 1, 1) and second.as_dict()["trainer"]["dp"] == 2
    found = shared.predict(fourth, 100, 10)
    assert found.fits and found.tokens_per_device_s == pytest.approx(1 / (1 / 60 + 1 / 30))
    assert found.memory_fraction == pytest.approx(0.9)
    refused = shared.predict(third, 100, 10)
    assert not refused.fits and refused.reason.startswith(
        "trainer: out of memory at 100 tokens x 10 sequences"
    )


def test_what_fits_alone_may_not_fit_together():
    shared = SharedTable([table("rollout", (TP1, 60.0, 0.5)), table("trainer", (TP1, 30.0, 0.6))])
    (only,) = shared.candidates(2)
    found = shared.predict(only, 100, 10)
    assert not found.fits and found.reason == "110% of a device's memory predicted for rollout and trainer"


def test_replicas_go_over_other_devices_together_or_not_at_all():
    both = Shared(("rollout", "trainer"), (TP1, TP2))
    assert both.over(4) == Shared(both.stages, (Parallelism(4), Parallelism(2, 2)))
    assert both.over(3) is None and both.devices == 2


def test_one_stage_shares_nothing_and_too_many_choices_are_refused():
    with pytest.raises(ConfigError, match="two stages at least"):
        SharedTable([table("rollout", (TP1, 1.0, None))])
    many = [
        table(
            stage,
            *((Parallelism(128 // 2**n, 2**n), 1.0, None) for n in range(8)),
            (Parallelism(128 // 8, 2, 4), 1.0, None),
        )
        for stage in ("rollout", "reference", "trainer")
    ]
    with pytest.raises(
        ConfigError, match=f"729 parallelisms together; profile fewer of them: at most {MOST_CHOICES}"
    ):
        SharedTable(many).candidates(128)


@settings(max_examples=6)
@given(st.integers(0, 10**6))
def test_the_policy_keeps_its_promises_for_all_stages_at_once(seed):
    draw = random.Random(seed)
    rollout = generate.table(draw)
    shared = SharedTable([rollout, renamed(generate.table(draw), "trainer")])
    steps = generate.trace("load", rollout, draw)[:25]
    cost_s = replay.cost(shared, 8, steps[0].workload).best_s
    costs = replay.costs_of(shared, steps)
    for ratio in (0.0, 1.0):
        taken = list(replay.run(policy_of("earl", shared, ratio * cost_s), steps, costs, cost_s))
        for one in taken[1:]:
            chosen = next(each for each in one.decision.candidates if each.parallelism == one.decision.after)
            assert chosen.fits or not any(each.fits for each in one.decision.candidates)
        assert replay.totals(taken, replay.oracle(costs, cost_s)[1]).regret_vs_oracle >= -1e-12
