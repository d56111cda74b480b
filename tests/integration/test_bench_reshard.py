"""A round of every way of `earl bench reshard` with a tiny model: real processes, slots, gloo and links."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.network.rig import RigUnavailable
from benchmarks.reshard.cases import ReshardCase
from benchmarks.reshard.command import measure
from benchmarks.reshard.hosts import measure_hosts
from earl.models.spec import ModelSpec
from tests.support.needs import lacking

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


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_engines_of_other_hosts_get_versions_whole_and_by_changes():
    """Every engine's digest is compared within; two engines of a host read one copy."""
    spec = ModelSpec("llama", 256, 2, 4, 4, 64, 1024, 1024, tied=True)
    try:
        made = await measure_hosts(spec, hosts=3, gbps=1.0, rounds=1, engines=(1, 2))
    except RigUnavailable as error:
        lacking(str(error))
    assert [case["per_host"] for case in made["engines"]] == [1, 2]
    whole = 2 * made["model_bytes"]
    for case in made["engines"]:
        assert whole < case["whole"]["publisher_link_bytes"] < 1.3 * whole
        assert case["changes_1_percent"]["publisher_link_bytes"] < whole / 8
        assert case["changes_5_percent"]["publisher_link_bytes"] < whole / 5
