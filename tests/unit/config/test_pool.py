"""stack.pool_devices: what is refused before anything starts, and the division that stages begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earl.config.check import check_pool
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.device_split import FILE, DeviceSplit, device_split, keep_split
from earl.stack.plan import profiles

POOL = {
    "stack": {"pool_devices": 8},
    "rollout": {"engines": 6, "device": "cpu"},
    "trainer": {"ranks": 2, "device": "cpu"},
    "scheduler": {"selector": "static"},
}


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"name": "r", "environment": {"name": "e"}, **sections})


def test_a_pool_of_processors_is_taken_and_a_run_without_one_is_not_asked():
    check_pool(config(**POOL))
    check_pool(config(rollout={"device": "cuda"}))
    assert config(**POOL).trainer_processes == 7
    assert config(trainer={"ranks": 3}).trainer_processes == 3


def test_a_selector_moves_devices_of_a_pool_and_changes_layouts_elsewhere():
    selects = {**POOL, "scheduler": {"selector": "on"}}
    check_pool(config(**selects))
    assert not config(**selects).selects_layouts and not profiles(config(**selects))
    assert config(rollout={"engines": 2}).selects_layouts and profiles(config(rollout={"engines": 2}))


@pytest.mark.parametrize(
    ("sections", "message", "remedy"),
    [
        ({"stack": {"pool_devices": 7}}, "6 for rollout and 2 for the trainer", "the sum"),
        ({"rollout": {"engines": 6}}, "rollout.device = 'auto'", 'rollout.device = "cpu"'),
        ({"trainer": {"ranks": 2, "device": "cuda"}}, "trainer.device = 'cuda'", 'trainer.device = "cpu"'),
        (
            {"rollout": {"engines": 3, "workers": 2, "device": "cpu"}},
            "rollout.workers = 2",
            "rollout.workers = 1",
        ),
        (
            {"rollout": {"engines": 6, "device": "cpu", "engine": "vllm"}},
            "rollout.engine = 'vllm'",
            'rollout.engine = "torch"',
        ),
        ({"stack": {"pool_devices": 8, "share": "alternate"}}, "stack.share", "stack.share = false"),
        (
            {"environment": {"name": "e", "seats": 2, "opponent": "frozen"},
             "scheduler": {"selector": "static", "steps": 9}},
            "frozen version",
            "remove opponent",
        ),
    ],
)  # fmt: skip
def test_what_cannot_have_a_pool_is_refused_with_a_remedy(sections, message, remedy):
    with pytest.raises(ConfigError, match=message) as raised:
        check_pool(config(**{**POOL, **sections}))
    assert remedy in raised.value.remedy


def test_a_stage_begins_with_what_it_had_last(tmp_path: Path):
    pooled = config(**POOL)
    assert device_split(pooled, tmp_path) == DeviceSplit(6, 2)
    keep_split(tmp_path, DeviceSplit(3, 5))
    assert device_split(pooled, tmp_path) == DeviceSplit(3, 5)
    # Without a pool the file says nothing.
    assert device_split(config(), tmp_path) == DeviceSplit(1, 1)


@pytest.mark.parametrize("text", ['{"rollout": 7, "trainer": 2}', '{"rollout": 8, "trainer": 0}', "{}", "no"])
def test_a_file_that_tells_no_division_is_refused(tmp_path: Path, text: str):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ConfigError, match="no division of 8 devices"):
        device_split(config(**POOL), tmp_path)
