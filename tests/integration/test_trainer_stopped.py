"""A run all of whose processes are stopped at once: the trainer saves what it trained, with nobody left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from earl.config.run import RunConfig
from earl.rpc.client import Client
from earl.v1 import trainer_pb2
from earl.v1.trainer_pb2_grpc import TrainerServiceStub
from services.trainer.checkpoint.manifest import FILE, Manifest
from tests.support.rollout import PlayedRollout
from tests.support.stack import Stack

OTHERS = ("scheduler", "valkey")
WARMUP, STEPS, EPISODES = 1, 3, 4
BATCH = 8
# Batches after the warm-up that are trained when all is stopped in the middle of the next.
TRAINED = 1


def configuration(directory: Path, ranks: int) -> RunConfig:
    scratch = {"hidden_size": 24, "intermediate_size": 20, "heads": 2, "kv_heads": 1, "layers": 1}
    return RunConfig.model_validate(
        {
            "name": "t",
            "runs_dir": str(directory),
            "model": {"scratch": scratch},
            "environment": {"name": "e"},
            "scheduler": {"group_size": 4, "batch_groups": 2, "steps": STEPS, "membership_s": 60.0},
            "warmup": {"batches": WARMUP, "batch_episodes": BATCH},
            "evaluation": {"episodes": EPISODES},
            # None but the warm-up's and the stopped trainer's own; steps that can be met in their middle.
            "trainer": {"device": "cpu", "checkpoint_every": 0, "ranks": ranks, "passes": 20},
        }
    )


async def reached(stack: Stack, there: Callable[[trainer_pb2.GetTrainerStatusResponse], bool]) -> int:
    """The trainer's version in its first status that is `there`: it answers whatever it does."""
    client = Client(stack.processes["trainer"].address, TrainerServiceStub)
    request = trainer_pb2.GetTrainerStatusRequest()
    async with asyncio.timeout(60):
        while not there(status := await client.call("GetTrainerStatus", request, deadline_s=10)):
            pass
    await client.close()
    return status.version


def in_its_step(status: trainer_pb2.GetTrainerStatusResponse) -> bool:
    return status.doing == "training" and status.version > WARMUP + TRAINED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "told"),
    [(1, "in its step"), (2, "while it commits")],
)
async def test_told_to_stop_when_all_others_are_gone_it_saves_and_goes_on_from_there(
    tmp_path: Path, ranks: int, told: str
) -> None:
    async with Stack(configuration(tmp_path, ranks)) as stack:
        await stack.up("valkey", "model", "scheduler", "trainer")
        async with PlayedRollout(stack) as rollout:
            playing = asyncio.create_task(rollout.play(lambda status: status.done))
            version = await reached(stack, in_its_step)
            playing.cancel()
            for name in OTHERS:
                await stack.kill(name)
            if told == "while it commits":
                # It waits for a scheduler that is gone, with more patience than it is given to leave.
                await reached(stack, lambda status: status.version > version)
            assert await stack.terminate("trainer") == 0, stack.log("trainer")
            with contextlib.suppress(asyncio.CancelledError):
                await playing
        saved = stack.directory / "checkpoints" / f"step-{version + 1}"
        progress = Manifest.decode((saved / FILE).read_bytes()).progress
        assert progress.version == progress.next_batch_id == version + 1
        assert len(progress.consumed) == BATCH * version

        await stack.up("valkey", "scheduler", "trainer")
        assert f"resumed version {version + 1} from {saved}" in stack.log("trainer")
        async with PlayedRollout(stack) as rollout:
            assert min(rollout.published) == version + 1
            status = await rollout.play(lambda status: status.done)
        assert await stack.ended("trainer") == 0, stack.log("trainer")
        assert status.version == 1 + WARMUP + STEPS
        # The commit that nobody answered was made up for: no batch was trained twice, none was rolled back.
        assert status.ledger.trained == BATCH * (WARMUP + STEPS)
        assert "rolled_back" not in status.ledger.dropped
