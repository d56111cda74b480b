"""Checks that what a run observes corrects a profile: bounded, local, and never by one step alone."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from earl.parallelism import Parallelism
from services.scheduler.profile.refine import BOUND, STEP, Refinement

TP1, TP2 = Parallelism(dp=4), Parallelism(dp=2, tp=2)
LENGTHS, COUNTS = st.floats(1.0, 1e6), st.floats(1.0, 1e4)
RATES = st.floats(1e-3, 1e9)
OBSERVATIONS = st.lists(st.tuples(st.sampled_from((TP1, TP2)), LENGTHS, COUNTS, RATES, RATES), max_size=30)


def learned(observations) -> Refinement:
    refinement = Refinement()
    for one in observations:
        refinement.observe(*one)
    return refinement


def test_nothing_observed_corrects_nothing():
    assert Refinement().factor(TP1, 100, 4) == 1.0


@given(OBSERVATIONS, st.sampled_from((TP1, TP2)), LENGTHS, COUNTS)
def test_a_factor_stays_within_its_bound_and_is_the_same_every_time(observations, layout, length, count):
    factor = learned(observations).factor(layout, length, count)
    assert 1 / BOUND <= factor <= BOUND
    assert factor == learned(observations).factor(layout, length, count)


@given(OBSERVATIONS, st.sampled_from((TP1, TP2)), LENGTHS, COUNTS, RATES, RATES)
def test_one_observation_moves_a_factor_by_a_step_at_most(observations, layout, length, count, rate, seen):
    refinement = learned(observations)
    before = refinement.factor(layout, length, count)
    refinement.observe(layout, length, count, rate, seen)
    assert abs(math.log(refinement.factor(layout, length, count) / before)) <= math.log(STEP) + 1e-9


@given(st.floats(1 / BOUND, BOUND), LENGTHS, COUNTS)
def test_what_stays_so_is_followed(ratio, length, count):
    refinement = learned([(TP1, length, count, 100.0, 100.0 * ratio)] * 40)
    assert abs(math.log(refinement.factor(TP1, length, count) / ratio)) < 0.05


@given(st.floats(1 / BOUND, BOUND))
def test_others_are_corrected_too_until_they_have_observations_of_their_own(ratio):
    """An error that all parallelisms share makes the one in use look neither worse nor better."""
    refinement = learned([(TP1, 1000, 16, 100.0, 100.0 * ratio)] * 40)
    own, other = refinement.factor(TP1, 1000, 16), refinement.factor(TP2, 1000, 8)
    assert abs(math.log(own / other)) < 0.25
    for _ in range(40):
        refinement.observe(TP2, 1000, 8, 100.0, 100.0)
    assert abs(math.log(refinement.factor(TP2, 1000, 8))) < abs(math.log(other)) / 2 + 1e-6
    assert abs(math.log(refinement.factor(TP1, 1000, 16) / ratio)) < 0.15


def test_one_noisy_step_does_not_turn_a_comparison_around():
    """Two parallelisms a fifth apart, steps as predicted, then one a hundred times too slow."""
    refinement = learned([(TP1, 1000, 16, 120.0, 120.0), (TP2, 1000, 16, 100.0, 100.0)] * 10)
    refinement.observe(TP1, 1000, 16, 120.0, 1.2)
    assert 120.0 * refinement.factor(TP1, 1000, 16) > 100.0 * refinement.factor(TP2, 1000, 16)


def test_what_is_far_away_says_nothing():
    refinement = learned([(TP1, 1000, 16, 100.0, 25.0)] * 40)
    assert refinement.factor(TP1, 1000, 16) < 0.3
    assert refinement.factor(TP1, 64_000, 16) > 0.99 and refinement.factor(TP1, 1000, 1600) > 0.99
    assert refinement.factor(TP1, 1100, 18) < 0.3


def test_concurrency_is_a_replicas():
    refinement = learned([(Parallelism(dp=2), 1000, 16, 100.0, 50.0)] * 20)
    assert refinement.factor(Parallelism(dp=4), 1000, 32) == refinement.factor(Parallelism(dp=2), 1000, 16)


def test_what_is_no_rate_says_nothing():
    assert learned([(TP1, 100, 4, 0.0, 5.0), (TP1, 100, 4, 5.0, math.nan)]).factor(TP1, 100, 4) == 1.0
