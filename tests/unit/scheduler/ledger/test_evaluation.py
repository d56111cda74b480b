"""Intervals against known values and by their coverage; the paired gain; which version is best."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from earl.ticket_ranges import RangeSet
from services.scheduler.journal.events import encode_done, encode_evaluation
from services.scheduler.ledger import phases
from services.scheduler.ledger.evaluation import (
    Judgement,
    Judgements,
    best_version,
    judge,
    kept_versions,
    rewards,
    wins,
)
from services.scheduler.ledger.intervals import mean_interval, t_quantile, wilson_interval
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.stored import decode, encode
from services.scheduler.state.tickets import Attempt, EpisodeEnding, EpisodeResult, Purpose, Ticket
from services.scheduler.state.workers import WorkerRecord
from tests.support.ledger import RULES

numbers = st.lists(st.floats(-10, 10), min_size=2, max_size=50)


def evaluated(name: str, version: int, outcome: list[float | None]) -> EvaluationRecord:
    """An evaluation with these rewards by index; None for an episode that failed."""
    evaluation = EvaluationRecord(name=name, version=version, episodes=len(outcome))
    for index, reward in enumerate(outcome):
        if reward is None:
            evaluation = evaluation.with_failure()
        else:
            evaluation = evaluation.with_result(index, EpisodeResult(reward=reward))
    return evaluation


# --- intervals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "quantile"),  # scipy.stats.t.ppf(0.975, degrees)
    [
        (1, 12.706204736174704), (2, 4.302652729749462), (3, 3.182446305283708), (4, 2.7764451051977934),
        (9, 2.2621571627409915), (30, 2.0422724563012373), (40, 2.021075390306273),
        (41, 2.019540970439693), (63, 1.998340542520747), (255, 1.9693105698498752),
        (16_383, 1.9601087958396926),
    ],
)  # fmt: skip
def test_students_quantile_is_that_of_the_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, rel=1e-8)


def test_a_mean_has_students_interval() -> None:
    found = mean_interval([1.0, 0.0, 1.0, 1.0, 0.0])  # scipy.stats.t.interval(0.95, 4, mean, sem)
    assert found.value == 0.6
    assert (found.low, found.high) == pytest.approx((-0.08008738065825, 1.28008738065825), rel=1e-9)
    alone = mean_interval([3.0])
    assert alone.value == 3.0 and math.isnan(alone.low)
    assert math.isnan(mean_interval([]).value)


@pytest.mark.parametrize(
    ("won", "count", "low", "high"),  # scipy.stats.binomtest(won, count).proportion_ci(method="wilson")
    [
        (8, 10, 0.4901624715366417, 0.9433178485456247),
        (0, 10, 0.0, 0.27753279986288915),
        (10, 10, 0.7224672001371109, 1.0),
        (158, 256, 0.5563285402485222, 0.6745814934016642),
    ],
)
def test_a_rate_has_wilsons_interval(won: int, count: int, low: float, high: float) -> None:
    found = wilson_interval(won, count)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.35, 0.62, 0.94])
@pytest.mark.parametrize("count", [64, 256])
def test_wilsons_interval_covers_the_true_rate(rate: float, count: int) -> None:
    """Its exact coverage: the probability of every outcome whose interval holds the rate."""
    covered = 0.0
    for won in range(count + 1):
        found = wilson_interval(won, count)
        if found.low <= rate <= found.high:
            covered += math.comb(count, won) * rate**won * (1 - rate) ** (count - won)
    assert 0.92 < covered < 0.99


@pytest.mark.parametrize("count", [5, 24, 100])
def test_the_paired_interval_covers_the_true_gain(count: int) -> None:
    """Tasks differ much more among themselves than the gain is large, which the pairs leave out."""
    draw = random.Random(count)
    trials, covered, width, unpaired = 1000, 0, 0.0, 0.0
    for _ in range(trials):
        hardness = [draw.gauss(0, 3) for _ in range(count)]
        before = evaluated("start", 1, [one + draw.gauss(0, 0.5) for one in hardness])
        after = evaluated("final", 9, [one + 0.3 + draw.gauss(0, 0.5) for one in hardness])
        judgement = judge(after, before)
        assert judgement.gain is not None
        covered += judgement.gain.low <= 0.3 <= judgement.gain.high
        width += judgement.gain.high - judgement.gain.low
        unpaired += judgement.reward.high - judgement.reward.low
    # Three standard deviations of a proportion of 0.95 in so many trials.
    assert abs(covered / trials - 0.95) < 3 * math.sqrt(0.95 * 0.05 / trials)
    assert width < 0.4 * unpaired


def test_the_interval_of_a_gain_in_right_and_wrong_covers_it() -> None:
    draw = random.Random(5)
    trials, covered = 1000, 0
    for _ in range(trials):
        chances = [draw.random() for _ in range(128)]
        before = [float(draw.random() < 0.6 * chance) for chance in chances]
        after = [float(draw.random() < 0.6 * chance + 0.2) for chance in chances]
        gain = judge(evaluated("final", 9, [*after]), evaluated("start", 1, [*before])).gain
        assert gain is not None
        covered += gain.low <= 0.2 <= gain.high
    assert 0.93 < covered / trials < 0.97


@given(numbers)
def test_an_interval_is_around_its_mean_and_moves_with_it(values: list[float]) -> None:
    found, moved = mean_interval(values), mean_interval([value + 5 for value in values])
    assert found.low <= found.value <= found.high
    assert moved.low == pytest.approx(found.low + 5, abs=1e-6)


# --- evaluations ----------------------------------------------------------------------------


def test_episodes_are_kept_by_instance_in_any_order_and_through_the_store() -> None:
    one = EvaluationRecord(name="start", version=2, episodes=4)
    for index, reward in ((3, 1.0), (0, -0.5), (2, 1e300)):
        win = {"win": 7.0 if index == 3 else 0.25}
        one = one.with_result(index, EpisodeResult(reward=reward, metrics=win))
    one = one.with_failure()
    again = decode("evaluation", "start", encode(one))
    assert isinstance(again, EvaluationRecord) and again == one and again.finished
    found = rewards(again)
    assert (found[0], found[2], found[3]) == (-0.5, 1e300, 1.0) and math.isnan(found[1])
    assert [value for value in wins(again) if not math.isnan(value)] == [0.25, 0.25, 1.0]
    assert len(encode(evaluated("full", 1, [1.0] * 256))) < 256 * 12 + 200


def test_only_instances_done_in_both_are_compared() -> None:
    before = evaluated("start", 1, [0.0, None, 1.0, 0.0])
    after = evaluated("final", 9, [1.0, 1.0, None, 1.0])
    judgement = judge(after, before)
    assert judgement.gain is not None
    assert (judgement.gain.value, judgement.pairs) == (1.0, 2)
    assert judgement.reward.value == 1.0 and judge(before, before).gain is None
    assert judge(evaluated("final", 9, [None, None]), before).gain is None


def test_a_shorter_evaluation_is_compared_on_its_own_instances() -> None:
    before = evaluated("start", 1, [0.0, 0.0, 1.0, 1.0])
    judgement = judge(evaluated("step-5", 6, [1.0, 0.0]), before)
    assert judgement.gain is not None and judgement.pairs == 2 and judgement.gain.value == 0.5


@given(numbers, numbers)
def test_a_gain_turns_its_sign_with_its_sides(left: list[float], right: list[float]) -> None:
    one, other = evaluated("a", 1, [*left]), evaluated("b", 2, [*right])
    there, back = judge(other, one), judge(one, other)
    assert there.gain is not None and back.gain is not None
    assert (there.gain.low, there.gain.high) == pytest.approx((-back.gain.high, -back.gain.low), abs=1e-9)


def test_the_first_evaluation_is_the_baseline_in_whatever_order_they_are_stored() -> None:
    final, start = evaluated("final", 9, [1.0, 1.0]), evaluated("start", 1, [0.0, 1.0])
    between = evaluated("step-8", 9, [1.0, 0.0])
    judged = Judgements().judged([final, between, start])
    assert [one.name for one, _ in judged] == ["start", "step-8", "final"]
    messages = [encode_evaluation(*pair) for pair in judged]
    assert [message.HasField("gain") for message in messages] == [False, True, True]
    assert [message.gain for message in messages] == [0.0, 0.0, 0.5]
    done = encode_done(final, start)
    assert done.metrics["gain"] == 0.5 and done.metrics["win_low"] == pytest.approx(0.3423802275)
    assert "gain" not in encode_done(start, None).metrics


def test_an_evaluation_is_judged_once_until_it_or_its_baseline_changes() -> None:
    """Status, metrics and page ask for all of them, every second."""
    start = EvaluationRecord(name="start", version=1, episodes=2).with_result(0, EpisodeResult(reward=0.0))
    many = [start, *(evaluated(f"step-{step}", step + 1, [1.0, step / 99]) for step in range(1, 100))]
    kept = Judgements()

    def look() -> dict[str, Judgement]:
        return {one.name: judgement for one, judgement in kept.judged(many)}

    before = look()
    many[-1] = many[-1].with_result(1, EpisodeResult(reward=5.0))
    after = look()
    assert [name for name in after if after[name] is not before[name]] == ["step-99"]
    many[0] = start.with_result(1, EpisodeResult(reward=1.0))
    last = look()
    assert all(last[name] is not after[name] for name in last) and last["step-99"].pairs == 2
    assert all(last[one.name] == judgement for one, judgement in Judgements().judged(many))


def test_figures_of_an_evaluation_that_has_none_yet_are_not_nan() -> None:
    judged = Judgements().judged([EvaluationRecord(name="start", version=1, episodes=4)])
    [message] = [encode_evaluation(*pair) for pair in judged]
    assert (message.mean_reward, message.win_rate, message.win_high) == (0.0, 0.0, 0.0)
    assert not message.HasField("gain")


# --- the best version -----------------------------------------------------------------------


def test_the_best_version_has_the_best_mean_reward_and_of_equals_the_earlier() -> None:
    start, middle = evaluated("start", 3, [0.0, 1.0]), evaluated("step-2", 5, [1.0, 1.0])
    final = evaluated("final", 9, [1.0, 1.0])
    assert best_version([]) == 0
    assert best_version([final, middle, start]) == 5
    in_progress = EvaluationRecord(name="final", version=11, episodes=2).with_result(
        0, EpisodeResult(reward=5.0)
    )
    assert best_version([in_progress, start]) == 3
    assert kept_versions([in_progress, start]) == [3, 11]
    assert kept_versions([]) == []


def test_a_short_evaluation_is_not_the_best_for_its_instances_being_easy() -> None:
    start = evaluated("start", 1, [1.0, 1.0, 0.0, 0.0])
    assert best_version([start, evaluated("step-2", 3, [1.0, 0.5])]) == 1
    assert best_version([start, evaluated("step-2", 3, [1.0, 1.5])]) == 3


def test_an_evaluation_most_of_which_failed_is_not_the_best() -> None:
    start = evaluated("start", 1, [0.5, 0.5, 0.5])
    assert best_version([start, evaluated("final", 9, [1.0, None, None])]) == 1


def test_the_best_is_so_on_instances_that_all_have_done() -> None:
    # What failed at version 5 were the hard ones.
    start = evaluated("start", 1, [1.0, 0.9, 0.0, 0.0])
    assert best_version([start, evaluated("step-4", 5, [0.9, 0.9, 0.9, None])]) == 5
    assert best_version([start, evaluated("step-4", 5, [0.9, 0.9, None, None])]) == 1
    assert best_version([start, evaluated("step-4", 5, [0.9, 1.5, None, None])]) == 1, "half failed"


def test_only_evaluations_of_one_setting_are_compared() -> None:
    """A run that was resumed with another task."""
    start = evaluated("start", 1, [1.0, 1.0])
    middle = replace(evaluated("step-2", 3, [0.0, 0.5]), setting="harder")
    final = replace(evaluated("final", 9, [0.5, 0.5]), setting="harder")
    assert [(one.name, verdict.pairs) for one, verdict in Judgements().judged([start, middle, final])] == [
        ("start", 0), ("step-2", 0), ("final", 2),
    ]  # fmt: skip
    assert best_version([start, middle, final]) == 9


def test_what_was_truncated_is_no_win_unless_it_says_so() -> None:
    assert EpisodeResult(reward=0.4).win == 1.0
    assert EpisodeResult(reward=0.4, ending=EpisodeEnding.TRUNCATED).win == 0.0
    assert EpisodeResult(reward=0.0, ending=EpisodeEnding.TRUNCATED, metrics={"win": 0.5}).win == 0.5


# --- on a schedule --------------------------------------------------------------------------

SCHEDULE = dataclasses.replace(
    RULES, warmup_batches=1, warmup_episodes=2, checkpoint_every=0, staleness=1, steps=6,
    evaluate_every_steps=2, evaluate_every_episodes=0,
)  # fmt: skip


def begun(rules=SCHEDULE) -> Ledger:
    ledger = Ledger(rules)
    ledger.membership.join(WorkerRecord(name="w", incarnation=1), 0.0)
    ledger.membership.join(WorkerRecord(name="t", incarnation=1), 0.0)
    reconcile(ledger, "t", 1, 1, 1, RangeSet())
    phases.advance(ledger, 0.0)
    return ledger


def play(ledger: Ledger, *purposes: Purpose) -> list[Ticket]:
    """Leases everything and plays what is of these purposes."""
    ledger.membership.mark_alive("w", 1, 0.0, ledger.tables.run.version)
    ledger.lease("w", 1, 1000, 0.0)
    held = [
        one for one in ledger.tables.tickets.values() if one.state == "leased" and one.purpose in purposes
    ]
    for one in held:
        version = ledger.tables.run.version
        done = EpisodeResult(
            total_tokens=4, trained_tokens=2, oldest_version=version, newest_version=version,
            descriptor_key=f"k{one.id}", reward=float(one.index % 2),
        )  # fmt: skip
        ledger.attempts.complete("w", 1, Attempt(one.id, one.attempt, one.fence), done)
    return held


def test_a_version_under_evaluation_stays_the_newest_and_has_a_checkpoint() -> None:
    ledger = begun()
    saved = {}
    for _ in range(7):
        play(ledger, Purpose.TRAIN, Purpose.WARMUP)
        batch = phases.next_batch(ledger, 0.0)
        if batch is None:
            version = ledger.tables.run.version
            assert kept_versions(ledger.tables.evaluations.values())[-1] == version
            asked = play(ledger, Purpose.EVALUATE)
            assert {one.min_version for one in asked} == {version}
            assert len({one.env_seed for one in asked}) == RULES.evaluation_episodes
            phases.advance(ledger, 0.0)
            play(ledger, Purpose.TRAIN)
            batch = phases.next_batch(ledger, 0.0)
        assert batch is not None
        saved[batch.version + 1] = batch.checkpoint
        ledger.commit(batch.id, batch.version + 1)
        phases.advance(ledger, 0.0)
    judged_at = {one.version for one in ledger.tables.evaluations.values()}
    assert judged_at == {2, 4, 6, 8}
    assert {version for version, checkpoint in saved.items() if checkpoint} == judged_at
    unkept = begun(dataclasses.replace(SCHEDULE, keep_best=False))
    play(unkept, Purpose.WARMUP)
    batch = phases.next_batch(unkept, 0.0)
    assert batch is not None and not batch.checkpoint


def to_the_end(ledger: Ledger) -> list[int]:
    """Plays until the run is done; the versions that were trained."""
    trained = []
    for _ in range(40):
        phases.advance(ledger, 0.0)
        if phases.phase(ledger) == phases.DONE:
            break
        play(ledger, *Purpose)
        batch = phases.next_batch(ledger, 0.0)
        if batch is not None:
            trained.append(batch.version)
            ledger.commit(batch.id, batch.version + 1)
    return trained


def test_a_run_that_goes_on_after_its_end_is_judged_anew() -> None:
    ledger = begun()
    to_the_end(ledger)
    assert phases.phase(ledger) == phases.DONE
    assert ledger.tables.evaluations["final"].version == 8
    ledger.rules = dataclasses.replace(SCHEDULE, steps=7)
    assert to_the_end(ledger) == [8]
    assert ledger.tables.evaluations["final"].version == 9
    # What was judged last before stays, as one in between.
    assert ledger.tables.evaluations["step-6"].version == 8
    assert ledger.tables.evaluations["step-6"].finished


def test_a_run_that_its_time_limit_ended_goes_on_with_another() -> None:
    limited = dataclasses.replace(SCHEDULE, train_limit_s=10.0, evaluation_episodes=0)
    ledger = begun(limited)
    play(ledger, Purpose.WARMUP)
    batch = phases.next_batch(ledger, 0.0)
    assert batch is not None
    ledger.commit(batch.id, batch.version + 1)
    phases.advance(ledger, 1.0)
    phases.advance(ledger, 11.0)
    assert phases.phase(ledger) == phases.DONE
    phases.resume(ledger, 12.0)
    assert phases.phase(ledger) == phases.DONE, "the limit is the same"
    ledger.rules = dataclasses.replace(limited, train_limit_s=20.0)
    phases.resume(ledger, 12.0)
    assert phases.phase(ledger) == phases.TRAIN


# --- mixtures and task sets -----------------------------------------------------------------


def test_episodes_of_one_task_are_one_observation() -> None:
    """Six episodes of three tasks: the intervals are those of the three means."""
    before = replace(evaluated("start", 1, [0, 0, 0, 0, 1, 0]), tasks=[3])
    after = replace(evaluated("final", 2, [1, 0, 1, 0, 1, None]), tasks=[3])
    judgement = judge(after, before)
    assert judgement.reward == mean_interval([0.5, 0.5, 1.0])
    assert judgement.win_rate == wilson_interval(2.0, 3)
    assert (judgement.gain, judgement.pairs) == (mean_interval([0.5, 0.0, 1.0]), 5)
    assert judge(replace(after, tasks=[]), replace(before, tasks=[])).reward == mean_interval([1, 0, 1, 0, 1])


def test_each_environment_of_a_mixture_is_judged_by_its_own_instances() -> None:
    before = replace(evaluated("start", 1, [0, 0] * 4), environments=["a", "b"])
    after = replace(evaluated("final", 2, [1, 0, 1, 1, 0, 0, 1, None]), environments=["a", "b"])
    judgement = judge(after, before)
    assert judgement.environments.keys() == {"a", "b"}
    assert judgement.environments["a"] == Judgement(
        mean_interval([1, 1, 0, 1]), wilson_interval(3, 4), mean_interval([1, 1, 0, 1]), 4
    )
    assert judgement.environments["b"].reward == mean_interval([0, 1, 0])
    assert (judgement.pairs, judgement.reward) == (7, mean_interval([1, 1, 0, 1, 0, 1, 0]))


def test_intervals_of_few_tasks_hold_the_truth_as_often_as_they_say() -> None:
    """Ten tasks, each solved with a chance of its own, played fifty times each."""
    draw = random.Random(3)
    held = 0
    for _ in range(300):
        chances = [draw.random() for _ in range(10)]
        outcome: list[float | None] = [float(draw.random() < chances[index % 10]) for index in range(500)]
        judgement = judge(replace(evaluated("final", 1, outcome), tasks=[10]), None)
        held += judgement.reward.low <= 0.5 <= judgement.reward.high
    assert 270 <= held <= 297
