"""Each process of a run sees the GPUs that it uses, and no other unless stages share them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.placement import VISIBLE, Placement, place
from earl.stack.plan import placed, plan


def config_of(**sections: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate({"name": "a", "environment": {"name": "e"}, **sections})


def eight(**more: Any) -> RunConfig:
    """Four ranks, and two workers of two engines each."""
    sections: dict[str, dict[str, Any]] = {
        "trainer": {"ranks": 4},
        "rollout": {"workers": 2, "engines": 2},
    }
    for key, value in more.items():
        section, _, name = key.partition("_")
        sections.setdefault(section, {})[name] = value
    return config_of(**sections)


def numbers(placement: Placement) -> dict[str, tuple[int, ...]]:
    return dict(placement.devices)


def test_each_process_sees_gpus_of_its_own():
    placement = place(eight(), 8)
    assert numbers(placement) == {"trainer": (0, 1, 2, 3), "rollout-0": (4, 5), "rollout-1": (6, 7)}
    specs = {spec.name: spec for spec in placed(plan(eight(), Path("run.json")), placement)}
    assert specs["trainer"].environment == {"OMP_NUM_THREADS": "1", VISIBLE: "0,1,2,3"}
    assert specs["rollout-1"].environment[VISIBLE] == "6,7"
    assert VISIBLE not in specs["scheduler"].environment and VISIBLE not in specs["model"].environment
    assert list(placement.lines()) == [
        "trainer on GPUs 0-3",
        "rollout-0 on GPUs 4-5",
        "rollout-1 on GPUs 6-7",
    ]


def test_what_computes_on_the_processor_stands_back_and_nothing_else():
    def nice(gpus: int, **more: object) -> dict[str, int]:
        config = eight(**more)
        specs = placed(plan(config, Path("run.json")), place(config, gpus))
        return {spec.name: spec.nice for spec in specs if spec.nice}

    assert nice(0) == {"trainer": 5, "rollout-0": 5, "rollout-1": 5}
    assert nice(0, stack_nice=0) == {} == nice(8)
    assert nice(8, trainer_device="cpu", stack_nice=7) == {"trainer": 7}


def test_named_devices_are_taken_first_and_the_launchers_own_are_counted():
    placement = place(eight(rollout_devices="0-3"), 8)
    assert numbers(placement) == {"trainer": (4, 5, 6, 7), "rollout-0": (0, 1), "rollout-1": (2, 3)}
    visible = "GPU-a, GPU-b,GPU-c,GPU-d,1,2,3,0"
    assert placement.environment("rollout-0", visible) == {VISIBLE: "GPU-a,GPU-b"}
    assert placement.environment("trainer", visible) == {VISIBLE: "1,2,3,0"}


def test_the_reference_stage_has_a_place_where_there_is_one():
    config = eight(trainer_kl_coefficient=0.1, reference_dp=2)
    assert numbers(place(config, 10))["reference"] == (8, 9)
    with pytest.raises(ConfigError, match=r"reference uses 2 devices .*0 of 8 are free: trainer has 0-3"):
        place(config, 8)


def test_what_computes_on_the_processor_takes_no_gpu():
    placement = place(eight(rollout_device="cpu"), 4)
    assert placement.environment("rollout-0", None) == {VISIBLE: ""}
    assert placement.environment("trainer", None) == {VISIBLE: "0,1,2,3"}
    assert list(placement.lines())[1] == "rollout-0 on the processor"


def test_without_gpus_devices_are_slots_and_nothing_is_hidden():
    placement = place(eight(trainer_devices="0-3", rollout_devices=4), 0)
    assert numbers(placement) == {"trainer": (0, 1, 2, 3), "rollout-0": (4, 5), "rollout-1": (6, 7)}
    assert placement.environment("trainer", None) == {}
    with pytest.raises(ConfigError, match=r"rollout.devices has 2-3, which trainer has too"):
        place(eight(trainer_devices="0-3", rollout_devices="2-5"), 0)


@pytest.mark.parametrize(
    ("more", "gpus", "message"),
    [
        (
            {},
            6,
            r"rollout uses 4 devices \(rollout.workers x engines x tp\), and 2 of 6 are free: trainer has",
        ),
        ({"trainer_devices": "4-7"}, 6, r"trainer.devices names GPU 7, and this machine has 6 devices"),
        ({"trainer_devices": "0-2"}, 8, r"trainer.devices gives 3 and trainer.ranks uses 4"),
        ({"trainer_devices": 2}, 8, r"trainer.devices gives 2 and trainer.ranks uses 4"),
        (
            {"rollout_devices": "0-3", "trainer_devices": "3-6"},
            8,
            r"rollout.devices has 3, which trainer has",
        ),
        ({"trainer_device": "cuda"}, 0, r'trainer.device = "cuda" on a machine without a GPU'),
        (
            {"trainer_ranks": 8, "stack_share": True},
            4,
            r"trainer uses 8 devices at once, and this machine has 4",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(more, gpus, message):
    with pytest.raises(ConfigError, match=message) as caught:
        place(eight(**more), gpus)
    assert caught.value.remedy


def test_stages_that_share_take_the_gpus_that_the_fewest_use():
    config = eight(stack_share=True, trainer_ranks=1)
    assert numbers(place(config, 1)) == {"trainer": (0,), "rollout-0": (0, 0), "rollout-1": (0, 0)}
    assert place(config, 1).environment("rollout-1", None) == {VISIBLE: "0"}
    assert numbers(place(config, 3)) == {"trainer": (0,), "rollout-0": (1, 2), "rollout-1": (0, 1)}
    both = eight(stack_share=True, trainer_devices="0-3", rollout_devices="0-3")
    assert numbers(place(both, 4)) == {"trainer": (0, 1, 2, 3), "rollout-0": (0, 1), "rollout-1": (2, 3)}


@given(
    ranks=st.integers(1, 6),
    workers=st.integers(1, 3),
    engines=st.integers(1, 3),
    gpus=st.integers(1, 16),
    share=st.booleans(),
)
def test_a_placement_gives_each_process_what_it_uses(ranks, workers, engines, gpus, share):
    config = config_of(
        trainer={"ranks": ranks}, rollout={"workers": workers, "engines": engines}, stack={"share": share}
    )
    try:
        placement = place(config, gpus)
    except ConfigError:
        assert ranks > gpus if share else ranks + workers * engines > gpus
        return
    used = [number for numbers in placement.devices.values() for number in numbers]
    assert len(used) == ranks + workers * engines and set(used) <= set(range(gpus))
    assert share or len(set(used)) == len(used)
    assert len(set(placement.devices["trainer"])) == ranks
