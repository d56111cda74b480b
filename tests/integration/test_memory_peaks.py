"""Predicted peaks of memory against those of real engines, trainer and reference ranks, within 15 %."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.memory_model.cases import CASES
from benchmarks.memory_model.command import measure

WITHIN = 0.15
# From run to run less may be resident (docs/selector.md): a peak is the most of so many.
RUNS = 3
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_as_predicted(name: str) -> None:
    most = None
    for _ in range(RUNS):
        (run,) = asyncio.run(measure({name: CASES[name]}))
        if most is None or run["measured_mib"] > most["measured_mib"]:
            most = run
        if most["error"] <= WITHIN:
            break
    assert most is not None and abs(most["error"]) <= WITHIN, most
