"""stack.pool_devices: what is refused before anything starts, and the division that stages begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from earl.config.check import check_pool
from earl.config.device_pool import most_devices, pooled_stages
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.parallelism import Parallelism
from earl.stack.device_split import FILE, device_split, keep_split
from earl.stack.plan import profiles

POOL = {
    "stack": {"pool_devices": 8},
    "rollout": {"engines": 6, "device": "cpu"},
    "trainer": {"ranks": 2, "device": "cpu"},
    "scheduler": {"selector": "static"},
}
# A pool of three stages: 6 + 2 + 4 devices.
REFERRED = {
    "stack": {"pool_devices": 12},
    "rollout": {"engines": 3, "tp": 2, "device": "cpu"},
    "trainer": {"ranks": 2, "device": "cpu", "kl_coefficient": 0.1},
    "reference": {"dp": 2, "tp": 2, "device": "cpu"},
    "scheduler": {"selector": "static"},
}


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"name": "r", "environment": {"name": "e"}, **sections})


def test_a_pool_of_processors_is_taken_and_a_run_without_one_is_not_asked():
    check_pool(config(**POOL))
    check_pool(config(rollout={"device": "cuda"}))
    assert most_devices(config(**POOL), "trainer") == 7
    assert most_devices(config(trainer={"ranks": 3}), "trainer") == 3


def test_a_reference_stage_is_one_of_the_pools_stages():
    with_it = config(**REFERRED)
    check_pool(with_it)
    assert pooled_stages(config(**POOL)) == ("rollout", "trainer")
    assert pooled_stages(with_it) == ("rollout", "trainer", "reference")
    # Each of the others keeps the devices of one replica.
    most = {stage: most_devices(with_it, stage) for stage in pooled_stages(with_it)}
    assert most == {"rollout": 9, "trainer": 8, "reference": 9}
    assert most_devices(config(reference={"dp": 2, "tp": 2}), "reference") == 4


def test_a_selector_moves_devices_of_a_pool_and_changes_layouts_elsewhere():
    selects = {**POOL, "scheduler": {"selector": "on"}}
    check_pool(config(**selects))
    assert not config(**selects).selects_layouts and not profiles(config(**selects))
    by_profile = config(**{**selects, "scheduler": {"selector": "on", "profile": "profile.csv"}})
    assert by_profile.selects_layouts and not profiles(by_profile)
    # A profile may choose a smaller replica for the others: this stage then has more devices.
    tp2 = by_profile.model_copy(update={"rollout": config(rollout={"engines": 3, "tp": 2}).rollout})
    assert most_devices(tp2, "trainer") == 7
    assert config(rollout={"engines": 2}).selects_layouts and profiles(config(rollout={"engines": 2}))


@pytest.mark.parametrize(
    ("sections", "message", "remedy"),
    [
        ({"stack": {"pool_devices": 7}}, "6 for rollout and 2 for the trainer", "the sum"),
        (
            {"trainer": {"ranks": 2, "device": "cpu", "kl_coefficient": 0.1}},
            "6 for rollout, 2 for the trainer and 1 for the reference stage",
            "rollout.engines x tp, trainer.ranks and reference.dp x tp",
        ),
        (
            REFERRED | {"reference": {"dp": 2, "tp": 2}},
            "reference.device = 'auto'",
            'reference.device = "cpu"',
        ),
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
    assert device_split(pooled, tmp_path) == {"rollout": Parallelism(6), "trainer": Parallelism(2)}
    keep_split(tmp_path, {"rollout": 3, "trainer": 5}, {})
    assert device_split(pooled, tmp_path) == {"rollout": Parallelism(3), "trainer": Parallelism(5)}
    # Without a pool the file says nothing.
    assert device_split(config(), tmp_path) == {"rollout": Parallelism(), "trainer": Parallelism()}


def test_a_stage_begins_in_the_replicas_that_it_had_last(tmp_path: Path):
    pooled = config(**POOL)
    keep_split(tmp_path, {"rollout": 4, "trainer": 4}, {"rollout": (2, 1, 1), "trainer": (1, 2, 1)})
    assert device_split(pooled, tmp_path) == {"rollout": Parallelism(2, 2), "trainer": Parallelism(2, cp=2)}
    for split, replicas in (({"rollout": 3, "trainer": 4}, {"rollout": "tp2"}), ({"rollout": 4}, "tp2")):
        (tmp_path / FILE).write_text(json.dumps(split | {"replicas": replicas}))
        with pytest.raises(ConfigError, match="no division of 8 devices"):
            device_split(pooled, tmp_path)


def test_a_reference_stage_begins_with_what_it_had_last(tmp_path: Path):
    pooled = config(**REFERRED)
    keep_split(tmp_path, {"rollout": 2, "trainer": 4, "reference": 6}, {})
    assert device_split(pooled, tmp_path) == {
        "rollout": Parallelism(1, 2), "trainer": Parallelism(4), "reference": Parallelism(3, 2),
    }  # fmt: skip
    # A file of a version whose reference stage kept its own devices.
    keep_split(tmp_path, {"rollout": 4, "trainer": 4}, {})
    assert device_split(pooled, tmp_path)["reference"] == Parallelism(2, 2)
    keep_split(tmp_path, {"rollout": 4, "trainer": 3, "reference": 5}, {})
    with pytest.raises(ConfigError, match="no division of 12 devices"):
        device_split(pooled, tmp_path)


@pytest.mark.parametrize("text", ['{"rollout": 7, "trainer": 2}', '{"rollout": 8, "trainer": 0}', "{}", "no"])
def test_a_file_that_tells_no_division_is_refused(tmp_path: Path, text: str):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ConfigError, match="no division of 8 devices"):
        device_split(config(**POOL), tmp_path)
