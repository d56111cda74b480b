"""Moves to engines with open slots: what leaves whom, and that nothing moves for nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.assign.cost import DecodeCost
from services.scheduler.assign.moves import LiveSequences, engine_left_s, moves, tokens_left
from services.scheduler.assign.plan import EngineKind

COST = DecodeCost(step_s=5e-3, sequence_s=4e-5, context_s=4e-8, prompt_s=4e-5)
QUICK = DecodeCost(step_s=1e-3, sequence_s=4e-5, context_s=1e-8, prompt_s=1e-5)
KINDS = (EngineKind(COST, 4), EngineKind(QUICK, 4))


def live_of(*rows: tuple[int, bool, float, float]) -> LiveSequences:
    """rows: engine, whether it waits, tokens of context, tokens left."""
    engine, waits, context, left = zip(*rows, strict=True) if rows else ((), (), (), ())
    return LiveSequences(
        np.asarray(engine, int), np.asarray(waits, bool), np.asarray(context, float), np.asarray(left, float)
    )


def moved(live: LiveSequences, kind: list[int]) -> list[tuple[int, int]]:
    return [(move.sequence, move.engine) for move in moves(live, KINDS, np.asarray(kind))]


def test_what_waits_longest_goes_to_an_engine_with_open_slots():
    live = live_of(
        *[(0, False, 500, 20_000)] * 4, (0, True, 100, 9_000), (0, True, 100, 4_000), (1, False, 100, 3_000)
    )
    assert moved(live, [0, 0])[0] == (4, 1)


def test_nothing_moves_where_all_slots_are_taken_or_nothing_is_gained():
    full = live_of(*[(0, False, 500, 20_000)] * 4, (0, True, 100, 900), *[(1, False, 100, 1000)] * 4)
    assert moved(full, [0, 0]) == []
    # What waits would end as late elsewhere.
    even = live_of(*[(0, False, 500, 1000)] * 4, (0, True, 100, 50), *[(1, False, 100, 1050)] * 2)
    assert moved(even, [0, 0]) == []
    assert moved(live_of(), [0, 0]) == []


def test_a_sequence_that_runs_alone_moves_to_quicker_steps_only():
    live = live_of((0, False, 8000, 20_000))
    assert moved(live, [0, 0]) == []
    assert moved(live, [0, 1]) == [(0, 1)]


def test_running_ones_move_where_computing_their_context_again_pays():
    crowd = EngineKind(DecodeCost(step_s=1e-4, sequence_s=1e-3, context_s=0.0, prompt_s=1e-4), 8)
    dear = EngineKind(DecodeCost(step_s=1e-4, sequence_s=1e-3, context_s=0.0, prompt_s=1.0), 8)
    live = live_of(*[(0, False, 1000, 5000)] * 6)
    assert len(moves(live, (crowd,), np.zeros(2, int))) == 3
    assert moves(live, (dear,), np.zeros(2, int)) == []


fleets = st.lists(st.integers(0, 1), min_size=2, max_size=8)
sequences = st.lists(
    st.tuples(st.integers(0, 7), st.booleans(), st.integers(1, 30_000), st.integers(1, 30_000)), max_size=40
)


def legal(rows: list[tuple[int, bool, int, int]], engines: int) -> list[tuple[int, bool, float, float]]:
    """The rows with no more running sequences than slots, and none that waits beside an open slot."""
    kept: list[tuple[int, bool, float, float]] = []
    running = [0] * engines
    for engine, _, context, left in rows:
        engine %= engines
        running[engine] += 1
        kept.append((engine, running[engine] > 4, context, left))
    return kept


@given(sequences, fleets)
@settings(max_examples=80)
def test_moves_are_to_open_slots_of_other_engines_and_shorten_the_longest(rows, kind):
    live = live_of(*legal(rows, len(kind)))
    kinds = np.asarray(kind)
    made = moves(live, KINDS, kinds)
    assert len({move.sequence for move in made}) == len(made)
    running = np.bincount(live.engine[~live.waits], minlength=len(kind))
    for engine in {move.engine for move in made}:
        taken = sum(move.engine == engine for move in made)
        assert running[engine] + taken <= KINDS[kind[engine]].slots
    engine = live.engine.copy()
    for move in made:
        assert move.engine != live.engine[move.sequence]
        engine[move.sequence] = move.engine
    before = engine_left_s(live, KINDS, kinds)
    # Contexts that are computed again count: as if those sequences had not begun.
    again = live.waits | (engine != live.engine)
    after = engine_left_s(LiveSequences(engine, again, live.context, live.left), KINDS, kinds)
    assert after.max(initial=0.0) <= before.max(initial=0.0) * (1 + 1e-9)
    assert moves(live, KINDS, kinds) == made


@given(st.integers(0, 40_000), st.integers(0, 40_000))
def test_what_is_left_is_never_nothing(predicted, response):
    left = float(tokens_left(np.asarray([predicted]), np.asarray([response]))[0])
    assert left >= 1
    assert response > 0.4 * predicted or left == max(1, predicted - response)


def test_the_time_that_is_left_counts_steps_once_and_slots():
    live = live_of((0, False, 1000, 2000), (0, False, 1000, 1000))
    expected = COST.step_s * 2000 + sum(
        float(COST.added_s(1000.0, left)) - COST.prompt_s * 1000 for left in (2000.0, 1000.0)
    )
    assert engine_left_s(live, KINDS, np.asarray([0, 0])).tolist() == pytest.approx([expected, 0.0])
