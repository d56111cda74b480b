"""`earl bench publish` with a tiny model: real processes, slots, engines, and both ways of the weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.publish.command import ENGINES, WAYS, measure
from earl.models.spec import ModelSpec

TINY = ModelSpec("llama", 64, 2, 4, 2, 16, 96, 61, tied=True)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("way", WAYS)
def test_both_sides_are_measured(way: str, tmp_path: Path):
    measured = asyncio.run(measure(TINY, way, 3, 1, str(tmp_path)))
    least, most = measured["stop_vs_copy_interval"]
    assert 0 < least <= measured["stop_vs_copy"] <= most
    assert len(measured["rounds_ms"]) == 3
    assert measured["staging_mib"].keys() == measured["load_s"].keys() == set(map(str, ENGINES))
