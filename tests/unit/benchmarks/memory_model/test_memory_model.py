"""`earl bench memory-model` reports what was fitted and what was held out apart."""

from __future__ import annotations

import pytest

from benchmarks.memory_model.cases import CASES, HELD_OUT
from benchmarks.memory_model.command import LEAST, MIB, predict, private_bytes, record, summary


def test_held_out_cases_are_of_a_shape_that_nothing_was_fitted_on() -> None:
    fitted = [case.model for case in CASES.values()]
    assert not CASES.keys() & HELD_OUT.keys()
    assert {case.stage for case in HELD_OUT.values()} == {"trainer", "reference", "rollout"}
    for case in HELD_OUT.values():
        assert case.model not in fitted and predict(case).total_bytes > 0


def test_the_median_of_the_starts_counts() -> None:
    name, case = next(iter(CASES.items()))
    total = private_bytes(case, predict(case))
    run = record(name, case, [3 * total, total // 2, total])
    assert run["error"] == 0.0 and run["measured_mib"] == run["predicted_mib"]
    assert run["starts_mib"] == [round(size / MIB, 1) for size in (3 * total, total // 2, total)]


def test_errors_of_both_kinds_stand_apart() -> None:
    runs = [{"held_out": held, "error": error} for held, error in [(False, 0.1), (False, -0.3), (True, -0.2)]]
    assert summary(runs) == {
        "memory_error": 0.3,
        "memory_error_median": pytest.approx(0.2),
        "held_out_error": 0.2,
        "held_out_error_median": 0.2,
        "held_out_under": 0.2,
        "held_out_over": 0.0,
        "fitted_cases": 2,
        "held_out_cases": 1,
        "missed": ["memory_error", "held_out_under", "fitted_cases", "held_out_cases"],
    }
    assert summary(runs[:2])["held_out_error"] is None


def test_a_prediction_that_is_too_large_may_be_further_off_than_one_that_is_too_small() -> None:
    fitted = [{"held_out": False, "error": error} for error in (0.1, -0.1)] * 10

    def missed(*errors: float) -> list[str]:
        return summary([*fitted, *({"held_out": True, "error": error} for error in errors)])["missed"]

    assert missed(*[0.2] * 4, *[-0.1] * 4) == []
    assert missed(*[0.0] * 7, 0.21) == ["held_out_over"]
    assert missed(*[0.0] * 7, -0.11) == ["held_out_under"]
    assert missed(*[0.0] * 7) == ["held_out_cases"]


def test_there_are_as_many_cases_as_the_goals_ask_for() -> None:
    assert len(CASES) >= LEAST["fitted_cases"] and len(HELD_OUT) >= LEAST["held_out_cases"]
    for cases in (CASES, HELD_OUT):
        assert {case.stage for case in cases.values()} == {"trainer", "reference", "rollout"}
    assert {case.spec.family for case in CASES.values()} == {"llama", "qwen2", "qwen3"}
