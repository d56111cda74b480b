"""The retention gate: what was kept of a protected environment, and which versions may be the best."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.scheduler.files.metrics_files import evaluation_line
from services.scheduler.journal.events import encode_done, encode_evaluation
from services.scheduler.ledger.evaluation import (
    Judgements,
    best_version,
    judge,
    kept_versions,
    retentions,
)
from services.scheduler.ledger.retention import Retention, ratio_interval, retention
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.stored import decode, encode
from services.scheduler.state.tickets import EpisodeResult

LABELS = ["old", "new"]
games = st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=2, max_size=40)


def evaluated(
    name: str, version: int, old: Sequence[float | None], new: Sequence[float | None] | None = None
) -> EvaluationRecord:
    """An evaluation of a mixture of which "old" is protected; None for an episode that failed."""
    new = [0.0] * len(old) if new is None else new
    record = EvaluationRecord(
        name=name, version=version, episodes=2 * len(old), environments=LABELS,
        protected={"old": -1.0}, protected_loss=0.03,
    )  # fmt: skip
    for index, reward in enumerate(reward for pair in zip(old, new, strict=True) for reward in pair):
        if reward is None:
            record = record.with_failure()
        else:
            record = record.with_result(index, EpisodeResult(reward=reward))
    return record


START = evaluated("start", 1, [1.0] * 90 + [-1.0] * 10)
BETTER_AT_NEW = [1.0] * 100


def kept(before: Sequence[float], after: Sequence[float], lowest: float = -1.0) -> Retention:
    return retention(before, after, lowest, 0.03, enough=True)


# --- the rule -------------------------------------------------------------------------------


@given(games)
def test_what_has_not_changed_is_retained(rewards: list[float]) -> None:
    judged = kept(rewards, rewards)
    assert judged.retained
    if any(reward > -1.0 for reward in rewards):
        assert (judged.kept.value, judged.kept.low, judged.kept.high) == (1.0, 1.0, 1.0)
    else:
        assert math.isnan(judged.kept.value), "a first score of 0 has nothing to lose"


@given(games, games, st.floats(0.01, 100), st.floats(-50, 50))
def test_what_is_kept_depends_on_no_unit_of_the_reward(
    before: list[float], after: list[float], scale: float, shift: float
) -> None:
    count = min(len(before), len(after))
    before, after = before[:count], after[:count]
    plain = kept(before, after)
    other = kept(
        [scale * value + shift for value in before],
        [scale * value + shift for value in after],
        lowest=shift - scale,
    )
    if sum(before) > -count:
        for name in ("value", "low", "high"):
            expected = getattr(plain.kept, name)
            assert getattr(other.kept, name) == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=True)


@given(games, games)
def test_a_reward_that_rises_makes_no_version_worse(before: list[float], after: list[float]) -> None:
    count = min(len(before), len(after))
    before, after = before[:count], after[:count]
    higher = [1.0] * count
    if sum(before) > -count:
        assert kept(before, higher).kept.value >= kept(before, after).kept.value
    assert kept(before, higher).retained


def test_a_negative_first_reward_is_judged_by_its_distance_from_the_lowest() -> None:
    """0.97 of a mean of -0.6 would be -0.582, more than it: the score counts from -1."""
    before = [-1.0] * 80 + [1.0] * 20
    assert kept(before, before).retained
    assert kept(before, [-1.0] * 100).kept.value == 0.0
    assert not kept(before, [-1.0] * 100).retained


def test_a_version_is_refused_only_where_the_whole_interval_lies_below() -> None:
    before = [1.0] * 100
    slightly = kept(before, [1.0] * 95 + [-1.0] * 5)
    assert slightly.kept.value == pytest.approx(0.95)
    assert slightly.kept.low < 0.95 < 0.97 < slightly.kept.high and slightly.retained
    many = kept(before * 10, ([1.0] * 95 + [-1.0] * 5) * 10)
    assert many.kept.value == pytest.approx(0.95)
    assert many.kept.high < 0.97 and not many.retained


def test_the_interval_of_a_ratio_covers_it() -> None:
    """The true ratio of means is 0.9 here, and about 95 % of the intervals hold it."""
    rng = random.Random(3)
    held, rounds = 0, 400
    for _ in range(rounds):
        bases = [float(rng.random() < 0.8) for _ in range(200)]
        values = [base * float(rng.random() < 0.9) for base in bases]
        interval = ratio_interval(values, bases)
        held += interval.low <= 0.9 <= interval.high
    assert 0.91 * rounds <= held <= 0.99 * rounds


# --- evaluations ----------------------------------------------------------------------------


def test_a_version_that_lost_the_old_task_is_not_the_best() -> None:
    lost = evaluated("step-2", 3, [1.0] * 70 + [-1.0] * 30, BETTER_AT_NEW)
    keeps = evaluated("step-4", 5, [1.0] * 90 + [-1.0] * 10, [0.4] * 100)
    assert best_version([START, replace(lost, protected={}), keeps]) == 3, "without a gate"
    assert best_version([START, lost, keeps]) == 5
    assert kept_versions([START, lost, keeps]) == [5]


def test_where_no_later_version_is_retained_the_first_one_is_the_best() -> None:
    lost = [evaluated(f"step-{n}", n + 1, [-1.0] * 100, BETTER_AT_NEW) for n in (2, 4)]
    final = evaluated("final", 9, [-1.0] * 100, BETTER_AT_NEW)
    assert best_version([START, *lost, final]) == 1


def test_no_version_is_the_best_where_the_first_evaluation_proves_too_little() -> None:
    start = evaluated("start", 1, [None] * 60 + [1.0] * 40, [None] * 100)
    final = evaluated("final", 9, [1.0] * 100)
    assert not retentions(final, start)["old"].retained, "most of the old games have no pair"
    assert best_version([start, final]) == 0


def test_failures_of_the_other_environment_leave_the_gate_alone() -> None:
    final = evaluated("final", 9, [1.0] * 90 + [-1.0] * 10, [None] * 40 + [1.0] * 60)
    assert retentions(final, START)["old"].kept.value == 1.0
    assert best_version([START, final]) == 9


def test_only_instances_of_both_evaluations_count() -> None:
    shorter = evaluated("step-2", 3, [1.0] * 50)
    judged = retentions(shorter, START)["old"]
    assert judged.kept.value == 1.0 and judged.retained, "the first 50 were all won at the start, too"


def test_games_of_one_task_are_one_observation() -> None:
    before, after = [1.0] * 20, [1.0] * 18 + [-1.0] * 2
    wide = evaluated("final", 9, after * 10)
    start = evaluated("start", 1, before * 10)
    tasks = [20, 0]
    apart = retentions(wide, start)["old"].kept
    clustered = retentions(replace(wide, tasks=tasks), replace(start, tasks=tasks))["old"].kept
    assert apart.value == pytest.approx(clustered.value) == pytest.approx(0.9)
    assert clustered.high - clustered.low > 3 * (apart.high - apart.low)


def test_the_first_evaluation_of_a_setting_is_where_the_run_began() -> None:
    """A resumed run with other tasks begins again: there are no pairs with what was before."""
    harder = [
        replace(evaluated("step-4", 5, [-1.0] * 99 + [1.0]), setting="harder"),
        replace(evaluated("final", 9, [-1.0] * 98 + [1.0] * 2), setting="harder"),
    ]
    assert best_version([START, *harder]) == 9


# --- where it is told -----------------------------------------------------------------------


def test_an_evaluation_tells_what_was_kept() -> None:
    lost = evaluated("final", 9, [1.0] * 40 + [-1.0] * 60, BETTER_AT_NEW)
    judged = {record.name: judgement for record, judgement in Judgements().judged([lost, START])}
    assert judged["start"].environments["old"].retention is None
    final = judged["final"]
    assert final.environments["new"].retention is None
    line = evaluation_line(lost, final)
    assert line["environments.old.kept"] == pytest.approx(4 / 9)
    assert line["environments.old.kept_low"] < 4 / 9 < line["environments.old.kept_high"] < 0.97
    assert line["environments.old.retained"] == 0.0
    assert "environments.new.retained" not in line
    assert encode_evaluation(lost, final).metrics["environments.old.retained"] == 0.0
    assert encode_done(lost, START).metrics["environments.old.kept"] == pytest.approx(4 / 9)


def test_the_rule_is_stored_with_the_evaluation() -> None:
    assert decode("evaluation", "start", encode(START)) == START
    plain = judge(replace(START, name="final", protected={}), START)
    assert all(each.retention is None for each in plain.environments.values())
    lost = evaluated("final", 9, [1.0] * 85 + [-1.0] * 15)
    assert retentions(lost, START)["old"].retained
    assert not retentions(replace(lost, protected_loss=0.0), START)["old"].retained


def test_an_evaluation_in_progress_is_not_judged() -> None:
    ended = evaluated("final", 9, [-1.0] * 100)
    in_progress = replace(ended, done=ended.done - 1)
    assert not retentions(ended, START)["old"].retained
    assert retentions(in_progress, START) == {}
    assert judge(in_progress, START).environments["old"].retention is None
