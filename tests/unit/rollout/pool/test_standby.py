"""Processes that are kept ready for engines of another parallelism: for which runs, and how many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earl.models.create import write_scratch
from earl.models.spec import load_spec
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.pool.devices import PoolDevices
from services.rollout.service import standby_processes
from tests.support.policy import SCRATCH
from tests.support.runs import tictactoe


@pytest.mark.parametrize(
    ("sections", "engines", "kept"),
    [
        ({"scheduler": {"selector": "on"}}, 2, True),
        # A single device can be in one parallelism only.
        ({"scheduler": {"selector": "on"}}, 1, False),
        ({"scheduler": {"selector": "observe"}}, 2, False),
        ({"scheduler": {"selector": "on"}, "rollout": {"standby": False}}, 2, False),
        ({"scheduler": {"selector": "static"}, "rollout": {"standby": True}}, 2, True),
    ],
)
async def test_one_for_each_device_where_the_selector_switches(
    tmp_path: Path, sections: dict[str, Any], engines: int, kept: bool
) -> None:
    directory = tmp_path / "model"
    write_scratch(directory, SCRATCH, 3, "float32")
    base = EngineSpec(name="e", model_dir=str(directory))
    devices = PoolDevices(base, engines, load_spec(str(directory)))
    standby = standby_processes(tictactoe(tmp_path, **sections), devices)
    assert (standby is not None) == kept
    if standby is not None:
        assert standby.count == 2 and standby.pids == []


@pytest.mark.parametrize(("most", "count"), [(2, 2), (3, 2), (7, 5)])
def test_as_many_as_a_pool_of_devices_may_still_give(tmp_path: Path, most: int, count: int) -> None:
    directory = tmp_path / "model"
    write_scratch(directory, SCRATCH, 3, "float32")
    base = EngineSpec(name="e", model_dir=str(directory))
    devices = PoolDevices(base, 2, load_spec(str(directory)), most=most)
    sections = {"scheduler": {"selector": "on"}, "stack": {"pool_devices": most + 1}}
    standby = standby_processes(tictactoe(tmp_path, **sections), devices)
    assert standby is not None and standby.count == count
