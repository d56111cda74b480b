"""Predicted peaks of memory against those of real engines, trainer and reference ranks, within 15 %."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.memory_model.cases import CASES
from benchmarks.memory_model.command import measure

WITHIN = 0.15
# Trainer and engine; the others take minutes.
QUICK = ("trainer", "trainer dp2", "rollout tp2")
pytestmark = pytest.mark.timeout(600)


def check(name: str) -> None:
    (run,) = asyncio.run(measure({name: CASES[name]}))
    assert abs(run["error"]) <= WITHIN, run


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.slow
def test_the_peak_is_as_predicted(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in QUICK])
def test_every_peak_is_as_predicted(name: str) -> None:
    check(name)
