"""The trainer as a process against the real scheduler, Valkey and data plane; the rollout is played."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from earl.config.run import RunConfig
from earl.dispatch.read.reader import Read
from earl.models.weights import check_model
from earl.rpc.client import Client
from earl.v1 import scheduler_pb2, trainer_pb2
from earl.v1.trainer_pb2_grpc import TrainerServiceStub
from services.trainer.checkpoint.export import write
from services.trainer.checkpoint.manifest import FILE, Manifest
from tests.support.rollout import PlayedRollout
from tests.support.stack import Stack, audited

WARMUP, STEPS, EPISODES = 2, 4, 6


def configuration(tmp_path: Path, **trainer: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "t",
            "runs_dir": str(tmp_path),
            "model": {
                "scratch": {
                    "hidden_size": 24,
                    "intermediate_size": 20,
                    "heads": 2,
                    "kv_heads": 1,
                    "layers": 1,
                }
            },
            "environment": {"name": "e"},
            # The played rollout is silent while a slow machine starts the trainer: it stays a member.
            "scheduler": {"group_size": 4, "batch_groups": 2, "steps": STEPS, "membership_s": 60.0},
            "warmup": {"batches": WARMUP, "batch_episodes": 8},
            "evaluation": {"episodes": EPISODES},
            "trainer": {"device": "cpu", "checkpoint_every": 2, **trainer},
        }
    )


@asynccontextmanager
async def running(config: RunConfig) -> AsyncIterator[tuple[Stack, PlayedRollout]]:
    async with Stack(config) as stack:
        await stack.up("valkey", "model", "scheduler", "trainer")
        async with PlayedRollout(stack) as rollout:
            yield stack, rollout


def done(status: scheduler_pb2.GetStatusResponse) -> bool:
    return status.done


def balanced(status: scheduler_pb2.GetStatusResponse) -> bool:
    """issued = trained + evaluated + dropped + live"""
    counts = status.ledger
    live = counts.pending + counts.leased + counts.ready + counts.planned
    return counts.issued == counts.trained + counts.evaluated + sum(counts.dropped.values()) + live


async def weights(rollout: PlayedRollout, version: int) -> dict[str, np.ndarray]:
    """Every tensor of a published version, read through the data plane from all ranks' shards."""
    keys = tuple(rollout.published[version])
    layouts = await rollout.reader.describe(keys)
    arrays = {name: np.zeros(layout.shape, np.float32) for name, layout in layouts.items()}
    await rollout.reader.read([Read(keys, name, None, array) for name, array in arrays.items()], 10.0)
    return arrays


def saved(path: Path) -> dict[str, np.ndarray]:
    with safe_open(path, framework="np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)


def children_of(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    "parallelism",
    [
        {"ranks": 1},
        {"ranks": 2},
        pytest.param({"ranks": 2, "tp": 2}, marks=pytest.mark.slow),
        pytest.param({"ranks": 2, "cp": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
async def test_a_whole_run(tmp_path: Path, parallelism: dict[str, int]) -> None:
    async with running(configuration(tmp_path, **parallelism)) as (stack, rollout):
        last = 1 + WARMUP + STEPS
        initial = await weights(rollout, 1)
        assert initial.keys() == saved(stack.directory / "model" / "model.safetensors").keys()
        # The trainer's memory is readable until it learns that the run is over.
        await rollout.play(lambda status: status.version == last and last in rollout.published)
        final = await weights(rollout, last)
        status = await rollout.play(done)
        assert await stack.ended("trainer") == 0, stack.log("trainer")
        assert balanced(status)
        assert (status.ledger.trained, status.ledger.evaluated) == (WARMUP * 8 + STEPS * 8, 2 * EPISODES)
        # Warm-up batches are published once, training's each.
        assert sorted(rollout.published) == [1, *range(1 + WARMUP, last + 1)]
        assert sorted(set(rollout.trained)) == list(range(2, last + 1))
        check_model(stack.directory / "model-final")
        for name, array in saved(stack.directory / "model-final" / "model.safetensors").items():
            np.testing.assert_array_equal(array, final[name], err_msg=name)
            assert not np.array_equal(array, initial[name])
        newest = stack.directory / "checkpoints" / f"step-{last}"
        manifest = Manifest.decode((newest / FILE).read_bytes())
        assert len(manifest.files) == parallelism["ranks"]
        assert len(manifest.progress.consumed) == status.ledger.trained
        assert manifest.progress.next_batch_id == WARMUP + STEPS + 1
        steps = [json.loads(line) for line in (stack.directory / "metrics.jsonl").open()]
        assert len(steps) == WARMUP + STEPS
        assert not list(stack.arenas.glob("trainer-*"))


async def test_adapters_train_and_the_best_version_is_exported(tmp_path: Path) -> None:
    config = configuration(tmp_path, lora_rank=2, importance="truncated", passes=2, keep_checkpoints=1)
    async with running(config) as (stack, rollout):
        last = 1 + WARMUP + STEPS
        published = {}
        while last not in published:
            await rollout.play(lambda status: max(rollout.published) not in published)
            version = max(rollout.published)
            published[version] = await weights(rollout, version)
        status = await rollout.play(done)
        assert await stack.ended("trainer") == 0, stack.log("trainer")
    assert status.best_version in (1 + WARMUP, last)
    best = stack.directory / "checkpoints" / "best"
    assert best.resolve().name == f"step-{status.best_version}"
    write(stack.directory, tmp_path / "out", "best")
    exported = saved(tmp_path / "out" / "model.safetensors")
    for name, array in published.get(status.best_version, {}).items():
        np.testing.assert_allclose(exported[name], array, atol=1e-6, rtol=1e-6, err_msg=name)
    steps = [json.loads(line) for line in (stack.directory / "metrics.jsonl").open()]
    names = {"logprob_mismatch", "logprob_mismatch_kl", "logprob_mismatch_max", "truncated_fraction"}
    assert names <= set(steps[-1])


@pytest.mark.slow
async def test_killed_and_resumed_from_the_manifest(tmp_path: Path) -> None:
    async with running(configuration(tmp_path)) as (stack, rollout):
        await rollout.play(lambda status: status.version >= 1 + WARMUP + 3)
        await stack.kill("trainer")
        checkpoints = sorted((stack.directory / "checkpoints").glob("step-*"))
        manifest = Manifest.decode((checkpoints[-1] / FILE).read_bytes())
        # Played on meanwhile: a rollout that is silent for long is no member any more.
        starting = asyncio.create_task(stack.start("trainer"))
        status = await rollout.play(done)
        await starting
        assert "resumed version" in stack.log("trainer")
        assert await stack.ended("trainer") == 0
        assert balanced(status)
        assert status.version == 1 + WARMUP + STEPS
        last = Manifest.decode(
            (stack.directory / "checkpoints" / f"step-{status.version}" / FILE).read_bytes()
        )
        assert len(last.progress.consumed) == status.ledger.trained
        assert manifest.progress.consumed.ranges[0][0] in last.progress.consumed
        # What was trained or evaluated after the manifest is played again, by other tickets.
        assert status.ledger.dropped.get("rolled_back", 0) % 8 in (0, EPISODES % 8)


async def test_a_batch_whose_columns_are_gone_is_abandoned_until_it_is_played_again(tmp_path: Path) -> None:
    async with Stack(configuration(tmp_path)) as stack:
        await stack.up("valkey", "model", "scheduler")
        async with PlayedRollout(stack) as rollout:
            await rollout.play(lambda status: status.ledger.ready >= 8)
        # It left, and its memory with it; the scheduler has not heard of that.
        await stack.start("trainer")
        client = Client(stack.processes["trainer"].address, TrainerServiceStub)
        async with asyncio.timeout(30):
            while "cannot be trained" not in stack.log("trainer"):
                await client.call("GetTrainerStatus", trainer_pb2.GetTrainerStatusRequest(), deadline_s=10)
        await client.close()
        async with PlayedRollout(stack) as rollout:
            status = await rollout.play(done)
        assert await stack.ended("trainer") == 0, stack.log("trainer")
        assert balanced(status)
        assert status.ledger.trained == (WARMUP + STEPS) * 8


@pytest.mark.slow
async def test_columns_that_cannot_be_trained_on_are_played_again(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    # The batch is given up once a worker that had gone would be known to have; this one plays all the time.
    scheduler = config.scheduler.model_copy(update={"membership_s": 10.0})
    config = config.model_copy(update={"scheduler": scheduler})
    async with Stack(config) as stack:
        await stack.up("valkey", "model", "scheduler")
        async with PlayedRollout(stack) as rollout:
            await rollout.play(lambda status: status.ledger.ready >= 8)
            name = rollout.sequences.names[0]
            key = rollout.sequences.key_of(name)
            rows = rollout.sequences.rows(name)
            await rollout.sequences.remove([name])
            for column in rollout.sequences.reserve(name, rows).values():
                column[:] = 10**6 if column.dtype == np.int32 else 0
            await rollout.sequences.publish([name])
            starting = asyncio.create_task(stack.start("trainer"))
            status = await rollout.play(done)
            await starting
        assert await stack.ended("trainer") == 0, stack.log("trainer")
        assert f"{key}: position" in stack.log("trainer")
        assert balanced(status)
        assert status.ledger.trained == (WARMUP + STEPS) * 8


async def test_sigterm_saves_at_a_boundary_and_exits_with_0(tmp_path: Path) -> None:
    async with running(configuration(tmp_path, checkpoint_every=0)) as (stack, rollout):
        await rollout.play(lambda status: status.version >= 1 + WARMUP + 1)
        address = stack.processes["trainer"].address
        client = Client(address, TrainerServiceStub)
        status = await client.call("GetTrainerStatus", trainer_pb2.GetTrainerStatusRequest(), deadline_s=10)
        assert status.worker.name == "trainer" and status.parallelism.dp == 1
        assert status.resident_bytes > 1 << 20
        answer = await client.call("SaveCheckpoint", trainer_pb2.SaveCheckpointRequest(), deadline_s=30)
        await client.close()
        assert answer.version >= status.version
        assert ("SaveCheckpoint", "ok") in audited(stack.directory, "trainer")
        assert Manifest.decode((Path(answer.path) / FILE).read_bytes()).progress.version == answer.version
        assert await stack.terminate("trainer") == 0, stack.log("trainer")
        assert list((stack.directory / "checkpoints").glob("step-*"))
        assert not (stack.directory / "model-final").exists()


async def test_a_rank_that_dies_ends_the_group(tmp_path: Path) -> None:
    async with running(configuration(tmp_path, ranks=2)) as (stack, rollout):
        await rollout.play(lambda status: status.version >= 3)
        ranks = children_of(stack.processes["trainer"].pid)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        assert await stack.ended("trainer") != 0
        assert not any(map(alive, ranks))
