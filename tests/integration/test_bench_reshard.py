"""A round of every way of `earl bench reshard` with a tiny model: real processes, slots and gloo."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.reshard.cases import ReshardCase
from benchmarks.reshard.command import measure
from earl.models.spec import ModelSpec

TINY = ModelSpec("llama", 18, 1, 4, 4, 5, 22, 31, tied=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        ReshardCase("tp2 x dp2 -> tp2", 2, 2, 2, True),
        pytest.param(ReshardCase("dp2 -> dp3", 1, 2, 3, False), marks=pytest.mark.slow),
    ],
)
def test_every_element_arrives_by_every_way(case: ReshardCase, tmp_path: Path):
    found = asyncio.run(measure(TINY, case, 1, str(tmp_path)))
    assert found["path"] == "shm"
    assert found["bytes_moved"] == found["bytes_needed"] > 0
    # Elsewhere every reader gets all of it, and rank 0 most of it before.
    assert found["gather_broadcast_bytes_moved"] > case.readers * 2 * TINY.parameters
    assert found["slot_bytes"] >= 2 * TINY.parameters
    assert 0 <= found["peak_extra_bytes"] <= 64 << 20
