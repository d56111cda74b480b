"""Assignment of sequences to engines: each to one, the longest first, in time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.parallelism import Parallelism
from services.scheduler.assign.cost import DecodeCost, decode_cost
from services.scheduler.assign.plan import EngineFleet, EngineKind, assign
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import ProfileTable

COST = DecodeCost(step_s=5e-3, sequence_s=4e-5, context_s=4e-8, prompt_s=4e-5)
QUICK = DecodeCost(step_s=2e-3, sequence_s=4e-5, context_s=2e-8, prompt_s=2e-5)


def fleet_of(free_s: list[float], slots: int = 4, quick: int = 0) -> EngineFleet:
    """Engines of the usual cost, the last `quick` of them of a quicker one."""
    kind = np.asarray([0] * (len(free_s) - quick) + [1] * quick)
    return EngineFleet((EngineKind(COST, slots), EngineKind(QUICK, slots)), kind, np.asarray(free_s, float))


def assigned(responses: list[int], fleet: EngineFleet, prompt: int = 100):
    return assign(np.full(len(responses), prompt), np.asarray(responses), fleet)


batches = st.lists(st.integers(0, 40_000), max_size=120)
fleets = st.builds(
    fleet_of,
    st.lists(st.floats(0, 300), min_size=2, max_size=12),
    st.integers(1, 16),
    st.integers(0, 2),
)


@given(batches, fleets)
@settings(max_examples=60)
def test_each_sequence_has_an_engine_and_the_longest_have_to_begin_first(responses, fleet):
    plan = assigned(responses, fleet)
    assert plan.engine.shape == plan.latest_s.shape == (len(responses),)
    assert all(0 <= engine < len(fleet.kind) for engine in plan.engine)
    assert (plan.end_s >= fleet.free_s - 1e-9).all()
    for engine in set(plan.engine.tolist()):
        first, *_ = sorted(np.flatnonzero(plan.engine == engine), key=lambda number: plan.latest_s[number])
        assert responses[first] == max(responses[number] for number in np.flatnonzero(plan.engine == engine))
    if responses:
        assert plan.latest_s.max() <= plan.level_s


def played_s(responses: list[int], kind: EngineKind, prompt: int = 100) -> float:
    """Seconds in which an engine plays sequences, each of which begins as soon as a slot is open."""
    slots = [0.0] * kind.slots
    for response in sorted(responses, reverse=True):
        first = slots.index(min(slots))
        slots[first] += response
    return kind.cost.step_s * max(slots) + sum(float(kind.cost.added_s(prompt, each)) for each in responses)


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=120), fleets)
@settings(max_examples=60)
def test_no_engine_ends_later_than_planned_but_for_the_width_of_a_class(responses, fleet):
    plan = assigned(responses, fleet)
    for engine, kind in enumerate(fleet.kind):
        sequences = [responses[number] for number in np.flatnonzero(plan.engine == engine)]
        if sequences:
            end_s = float(fleet.free_s[engine]) + played_s(sequences, fleet.kinds[kind])
            assert end_s <= plan.end_s[engine] * 1.3 + 1e-6


@given(st.lists(st.integers(1, 40_000), min_size=8, max_size=120), st.integers(1, 8), st.integers(2, 6))
@settings(max_examples=40)
def test_it_ends_no_later_than_turns_would(responses, slots, engines):
    """Within what the level's search, classes and shelves may cost."""
    fleet = fleet_of([0.0] * engines, slots)
    turns = max(played_s(responses[engine::engines], fleet.kinds[0]) for engine in range(engines))
    plan = assigned(responses, fleet)
    planned = max(
        played_s([responses[number] for number in np.flatnonzero(plan.engine == engine)], fleet.kinds[0])
        for engine in range(engines)
    )
    assert planned <= 2 * turns + 1e-6


def test_an_engine_that_ends_late_has_the_short_ones_of_the_next_batch():
    draw = np.random.default_rng(1)
    responses = np.exp(draw.normal(8, 1, 64)).astype(int).tolist()
    first = assigned(responses, fleet_of([0.0] * 8))
    second = assigned(responses, fleet_of(first.end_s.tolist()))
    late, early = int(np.argmax(first.end_s)), int(np.argmin(first.end_s))
    assert first.end_s[late] > first.end_s[early]

    def longest(engine: int) -> int:
        return max((responses[number] for number in np.flatnonzero(second.engine == engine)), default=0)

    assert longest(late) < longest(early)
    assert longest(early) == max(responses)


def test_the_longest_have_the_engines_with_the_quickest_steps():
    responses = [20_000] * 4 + [500] * 40
    plan = assigned(responses, fleet_of([0.0] * 6, slots=4, quick=1))
    assert {int(plan.engine[number]) for number in range(4)} == {5}


def test_engines_share_steps_among_sequences_of_about_equal_length():
    draw = np.random.default_rng(2)
    responses = draw.uniform(1000, 8000, 256).astype(int)
    plan = assigned(responses.tolist(), fleet_of([0.0] * 16, slots=32))

    def steps(engines: np.ndarray) -> int:
        return sum(int(responses[engines == engine].max(initial=0)) for engine in range(16))

    assert steps(plan.engine) < steps(np.arange(256) % 16)


@pytest.mark.parametrize("responses", [[], [7]])
def test_little_or_nothing_is_assigned_too(responses):
    plan = assigned(responses, fleet_of([3.0, 1.0]))
    assert plan.engine.tolist() == [1] * len(responses)


@given(st.integers(1, 20_000), st.integers(1, 64))
def test_sequences_add_what_steps_with_them_take_longer(response, sequences):
    """The sum over steps of what B sequences cost equals the closed form, to half a token."""
    alone_s = COST.alone_s(100.0, float(response))
    steps = np.arange(response)
    exact = COST.prompt_s * 100 + (COST.step_s + COST.sequence_s + COST.context_s * (100 + steps)).sum()
    assert alone_s == pytest.approx(exact, rel=1e-3, abs=1e-6)
    together = COST.step_s * response + sequences * COST.added_s(100.0, float(response))
    assert together <= sequences * alone_s * (1 + 1e-9)


def test_the_cost_of_an_engine_comes_from_its_profile():
    """Rows made from a known cost give that cost back, for a replica of each layout."""
    rows = []
    for tp, true in ((1, COST), (2, QUICK)):
        layout = Parallelism(8 // tp, tp)
        for context in (1000, 4000, 16_000):
            for concurrency in (16, 64, 256):
                sequences = concurrency / layout.dp
                step_s = true.step_s + sequences * (true.sequence_s + true.context_s * context)
                rate = sequences / step_s / tp
                rows.append(ProfileRow("rollout", layout, context, concurrency, rate))
    table = ProfileTable(rows, "rollout")
    for tp, true in ((1, COST), (2, QUICK)):
        fitted = decode_cost(table, Parallelism(8 // tp, tp))
        assert fitted.step_s == pytest.approx(true.step_s, rel=1e-6)
        assert fitted.sequence_s == pytest.approx(true.sequence_s, rel=1e-6)
        assert fitted.context_s == pytest.approx(true.context_s, rel=1e-6)
        assert fitted.prompt_s == fitted.sequence_s
