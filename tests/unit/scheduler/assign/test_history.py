"""Lengths by task: what is predicted, from what, within which memory, and how wrong."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.assign import history
from services.scheduler.assign.history import LengthHistory, LengthPrediction, PredictionError

lengths = st.lists(st.integers(1, 100_000), min_size=1, max_size=80)


def play(known: LengthHistory, task: int, group: int, responses: list[int], prompt: int = 100) -> None:
    for response in responses:
        known.observe("", task, group, prompt, response)


def test_nothing_is_predicted_before_anything_ended():
    known = LengthHistory()
    assert known.predict("", 3, 100) == LengthPrediction(0.0, 0.0)
    assert known.error == PredictionError(None, None) and len(known) == 0


@given(lengths, st.sampled_from([0.5, 0.7, 0.9]))
@settings(max_examples=30)
def test_a_prediction_lies_between_the_lengths_of_the_only_task(responses, quantile):
    known = LengthHistory(quantile)
    play(known, 0, 0, responses)
    recent = responses[-history.RECORDED_EPISODES :]
    predicted = known.predict("", 0, 100)
    assert min(recent) * (1 - 1e-9) <= predicted.tokens <= max(recent) * (1 + 1e-9)
    assert 0 < predicted.episodes <= len(recent)


@given(st.permutations(range(6)), st.integers(1, 50))
@settings(max_examples=20)
def test_ranks_of_tasks_are_those_of_their_lengths(order, factor):
    known = LengthHistory()
    for epoch in range(2):
        for task in order:
            play(known, task, 10 * epoch + task, [factor * (10 + 20 * task)] * 4)
    predicted = [known.predict("", task, 100).tokens for task in range(6)]
    assert predicted == sorted(predicted) and len(set(predicted)) == 6


def test_the_error_is_that_of_the_predictions_that_were_made_before():
    known = LengthHistory()
    for task in (0, -1):
        known.observe("", task, 1, 100, 50, predicted=0.0)  # nothing was predicted
    assert known.error == PredictionError(None, None)
    for task in (0, -1):
        known.observe("", task, 2, 100, 50, predicted=100.0)
    assert known.error.factor == pytest.approx(2.0) and known.error.covered == 1.0


def test_a_prompt_that_is_not_known_is_like_all_of_its_environment():
    known = LengthHistory(0.5)
    for number in range(30):
        known.observe("", number, number, 1, 100)
        known.observe("", 50 + number, 50 + number, 5000, 8000)
        known.observe("", 100 + number, 100 + number, 5000, 8000)
    assert known.predict("", 999, 1).tokens == pytest.approx(100, rel=0.02)
    assert known.predict("", 999, 0).tokens == pytest.approx(8000, rel=0.02)


def test_a_task_without_a_record_is_predicted_by_environment_and_prompt():
    known = LengthHistory(0.5)
    for number in range(40):
        known.observe("short", number, number, 50, 100)
        known.observe("long", number, number, 50, 1000)
        known.observe("long", 100 + number, number, 5000, 8000)
    assert known.predict("short", 999, 50).tokens == pytest.approx(100, rel=0.02)
    assert known.predict("long", 999, 60).tokens == pytest.approx(1000, rel=0.02)
    assert known.predict("long", 999, 4500).tokens == pytest.approx(8000, rel=0.02)
    # No prompt was as long as this one: all of the environment count.
    assert 1000 * 0.98 <= known.predict("long", -1, 1 << 20).tokens <= 8000 * 1.02
    assert known.predict("another", 1, 50).tokens == 0


def test_a_task_that_is_in_no_set_counts_for_its_environment_alone():
    known = LengthHistory()
    known.observe("", -1, 1, 100, 64)
    assert len(known) == 0 and known.predict("", -1, 100).tokens == pytest.approx(64, rel=0.02)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 1000)), min_size=1, max_size=60))
@settings(max_examples=30)
def test_memory_is_bounded_and_what_was_not_played_for_longest_is_forgotten(episodes):
    known = LengthHistory(most_tasks=5)
    for group, (task, response) in enumerate(episodes):
        known.observe("", task, group, 100, response)
    last = list(dict.fromkeys(task for task, _ in reversed(episodes)))
    assert len(known) == min(5, len(last))
    assert all(known.predict("", task, 100).episodes > 0 for task in last[:5])
    assert all(known.predict("", task, 100).episodes == 0 for task in last[5:])


def test_environments_are_bounded(monkeypatch):
    monkeypatch.setattr(history, "MOST_ENVIRONMENTS", 2)
    known = LengthHistory()
    for label in "abc":
        known.observe(label, 0, 0, 10, 50)
    assert known.predict("a", 0, 10).tokens == 0 < known.predict("c", 0, 10).tokens


def test_old_lengths_fade():
    known = LengthHistory()
    play(known, 0, 0, [1000] * 64)
    play(known, 0, 1, [100] * history.RECORDED_EPISODES)
    assert known.predict("", 0, 100).tokens < 300


def epochs(known: LengthHistory, growth: float, noise: float, count: int = 4, tasks: int = 150) -> None:
    """Plays epochs of groups of four, with lengths that grow by a factor in each."""
    draw = random.Random(7)
    base = [math.exp(draw.gauss(7, 1)) for _ in range(tasks)]
    for epoch in range(count):
        for task in range(tasks):
            length = base[task] * growth**epoch * math.exp(draw.gauss(0, noise))
            play(known, task, epoch * tasks + task, [max(1, round(length))] * 4)


def test_lengths_that_grow_for_all_tasks_are_followed():
    known = LengthHistory()
    epochs(known, growth=2.0, noise=0.01, count=2)
    before = known.predict("", 5, 100).tokens
    epochs_further = LengthHistory()
    epochs(epochs_further, growth=2.0, noise=0.01, count=4)
    after = epochs_further.predict("", 5, 100).tokens
    assert 2.5 < after / before < 5.5


def test_the_part_that_is_covered_is_the_quantile_and_the_error_is_that_of_the_lengths():
    known = LengthHistory(0.7)
    epochs(known, growth=1.0, noise=0.3)
    error = known.error
    assert error.covered is not None and error.factor is not None
    assert abs(error.covered - 0.7) < 0.12
    assert 1.2 < error.factor < 2.0
    exact = LengthHistory(0.5)
    epochs(exact, growth=1.0, noise=0.0)
    # The first epoch was predicted by the environment alone.
    assert exact.error.factor is not None and error.factor > 1.0


def test_a_record_counts_less_where_tasks_change_more():
    steady, shuffled = LengthHistory(0.5), LengthHistory(0.5)
    epochs(steady, growth=1.0, noise=0.05)
    draw = random.Random(1)
    for epoch in range(4):
        for task in range(150):
            response = max(1, round(math.exp(draw.gauss(7, 1))))
            play(shuffled, task, epoch * 150 + task, [response] * 4)

    def spread(known: LengthHistory) -> float:
        predicted = [math.log(known.predict("", task, 100).tokens) for task in range(150)]
        return max(predicted) - min(predicted)

    assert spread(shuffled) < 0.5 * spread(steady)


def test_episodes_of_a_group_do_not_predict_each_other():
    known = LengthHistory()
    play(known, 0, 0, [100] * 4)
    play(known, 1, 1, [5000] * 4)
    # Both were cold starts: the second was predicted by the first one's length, four times.
    assert known.error.covered is not None and known.error.covered < 0.5
    assert known.error.factor is not None and known.error.factor > 20


@pytest.mark.parametrize("count", [63, 64, 200, 240, 1100])
def test_a_history_that_is_built_again_predicts_the_same(count):
    """Whenever it was asked before."""
    drawn = random.Random(count)
    responses = [drawn.randint(1, 1000) for _ in range(count)]
    asked, built = LengthHistory(), LengthHistory()
    for group, response in enumerate(responses):
        asked.observe("", -1, group, 100, response, predicted=0.0)
        asked.predict("", 3, 0)
        built.observe("", -1, group, 100, response, predicted=0.0)
    assert asked.predict("", 3, 0) == built.predict("", 3, 0)
    assert asked.predict("", -1, 100) == built.predict("", -1, 100)
