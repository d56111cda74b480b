"""`earl bench memory-model` reports what was fitted and what was held out apart."""

from __future__ import annotations

import pytest

from benchmarks.memory_model.cases import CASES, HELD_OUT
from benchmarks.memory_model.command import predict, summary


def test_held_out_cases_are_of_a_shape_that_nothing_was_fitted_on() -> None:
    fitted = [case.model for case in CASES.values()]
    assert not CASES.keys() & HELD_OUT.keys()
    assert {case.stage for case in HELD_OUT.values()} == {"trainer", "reference", "rollout"}
    for case in HELD_OUT.values():
        assert case.model not in fitted and predict(case).total_bytes > 0


def test_errors_of_both_kinds_stand_apart() -> None:
    runs = [{"held_out": held, "error": error} for held, error in [(False, 0.1), (False, -0.3), (True, -0.2)]]
    assert summary(runs) == {
        "memory_error": 0.3,
        "memory_error_median": pytest.approx(0.2),
        "held_out_error": 0.2,
        "held_out_error_median": 0.2,
    }
    assert summary(runs[:2])["held_out_error"] is None
