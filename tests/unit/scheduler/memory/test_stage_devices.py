"""The prediction of a stage's memory on GPUs, by the devices that workers have reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.parallelism import STAGES, Parallelism
from earl.worker_report import WorkerDevice
from services.scheduler.memory import predict
from services.scheduler.memory.node import CONTEXT_BYTES, GIB
from services.scheduler.memory.stage_devices import StageDevice, StageDevices, devices_of, gpu_fraction
from services.scheduler.profiler.node_probe import planned_spec
from services.scheduler.state.workers import WorkerRecord

EXAMPLES = Path(__file__).parents[4] / "examples"
TP1, TP2 = Parallelism(4), Parallelism(2, 2)


def gpu(number: int, gib: int = 80) -> WorkerDevice:
    return WorkerDevice("cuda", f"GPU-{number}", number, gib * GIB)


def worker(stage: str, layout: Parallelism, *devices: WorkerDevice, name: str = "") -> WorkerRecord:
    degrees = (layout.dp, *layout.replica)
    return WorkerRecord(
        name=name or stage, incarnation=1, stage=STAGES.index(stage) + 1, parallelism=degrees, devices=devices
    )


def example(kv_tokens: int = 131_072, max_sequences: int = 64) -> RunConfig:
    config = load_run(EXAMPLES / "qwen3_8b_8gpu.toml", elsewhere=True)
    keys = {"kv_tokens": kv_tokens, "max_sequences": max_sequences}
    return config.model_copy(update={"rollout": config.rollout.model_copy(update=keys)})


def test_ranks_are_counted_by_device_and_those_of_other_stages_apart():
    known = devices_of(
        [
            worker("rollout", Parallelism(2), gpu(0), gpu(1), name="rollout-0"),
            worker("rollout", Parallelism(2), gpu(1), gpu(2, 40), name="rollout-1"),
            worker("trainer", Parallelism(1), gpu(0)),
            WorkerRecord(name="reference", incarnation=1, stage=3),
        ]
    )
    engines = Parallelism(2)
    assert known == {
        "rollout": StageDevices(
            frozenset({"cuda"}),
            frozenset(
                {
                    StageDevice(80 * GIB, 1, (("trainer", Parallelism(1), 1),)),
                    StageDevice(80 * GIB, 2),
                    StageDevice(40 * GIB, 1),
                }
            ),
        ),
        "trainer": StageDevices(
            frozenset({"cuda"}), frozenset({StageDevice(80 * GIB, 1, (("rollout", engines, 1),))})
        ),
    }


def test_the_smallest_device_of_a_stage_decides():
    config = example()
    spec = planned_spec(config)
    mine = predict("rollout", config, spec, TP1, 32_768, 256, device="cuda", base_bytes=CONTEXT_BYTES)
    even = {StageDevice(80 * GIB, 1)}
    assert gpu_fraction("rollout", config, spec, even, TP1, 32_768, 256) == pytest.approx(
        mine.total_bytes / (80 * GIB)
    )
    uneven = even | {StageDevice(24 * GIB, 1)}
    assert gpu_fraction("rollout", config, spec, uneven, TP1, 32_768, 256) > 1


def test_what_other_stages_take_of_a_shared_device_is_subtracted():
    config = example()
    spec = planned_spec(config)
    layout = Parallelism(4)
    alone = StageDevice(160 * GIB, 1)
    shared = StageDevice(160 * GIB, 1, (("trainer", layout, 1),))
    before, after = (
        gpu_fraction("rollout", config, spec, {device}, TP1, 32_768, 256) for device in (alone, shared)
    )
    trainer = predict(
        "trainer", config, spec, layout, 32_768, config.batch_trajectories, device="cuda",
        base_bytes=CONTEXT_BYTES,
    )  # fmt: skip
    left = 160 * GIB - trainer.total_bytes
    assert after == pytest.approx(before * 160 * GIB / left)
    # Where others take all, the share is large, and a number.
    full = StageDevice(20 * GIB, 1, (("trainer", layout, 1),))
    assert 1 < gpu_fraction("rollout", config, spec, {full}, TP1, 32_768, 256) < 1e5


def test_a_stage_that_sleeps_meanwhile_takes_its_processes_alone():
    config = example()
    spec = planned_spec(config)
    turns = config.model_copy(update={"stack": config.stack.model_copy(update={"share": "alternate"})})
    shared = StageDevice(80 * GIB, 1, (("trainer", Parallelism(4), 1),))
    alone = gpu_fraction("rollout", config, spec, {StageDevice(80 * GIB, 1)}, TP1, 32_768, 256)
    assert gpu_fraction("rollout", config, spec, {shared}, TP1, 32_768, 256) > 1
    beside = gpu_fraction("rollout", turns, spec, {shared}, TP1, 32_768, 256)
    assert beside == pytest.approx(alone * 80 * GIB / (80 * GIB - CONTEXT_BYTES))


def test_a_device_keeps_its_bytes_of_kv_in_another_tp():
    """services.rollout.pool.devices gives engines of more devices as many more tokens."""
    config = example()
    spec = planned_spec(config)
    kv = [
        predict("rollout", config, spec, layout, 1024, 64, device="cuda").kv
        for layout in (TP1, TP2, Parallelism(1, 4))
    ]
    assert kv[0] == 131_072 * 36 * 2 * 8 * 128 * 2 and len(set(kv)) == 1
