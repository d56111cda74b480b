"""Predicted peaks of memory against those of real engines, trainer and reference ranks, within 15 %."""

from __future__ import annotations

import asyncio
import statistics

import pytest

from benchmarks.memory_model.cases import CASES
from benchmarks.memory_model.command import measure

WITHIN = 0.15
# Peaks differ from run to run (docs/selector.md): where the first is further off, the median of three counts.
RUNS = 3
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_as_predicted(name: str) -> None:
    errors: list[float] = []
    while len(errors) < RUNS:
        (run,) = asyncio.run(measure({name: CASES[name]}))
        errors.append(run["error"])
        if abs(errors[0]) <= WITHIN:
            return
    assert abs(statistics.median(errors)) <= WITHIN, errors
