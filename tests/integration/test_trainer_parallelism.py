"""A trainer of two processes is told to change its cut while a run is going, as the scheduler tells it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from earl.errors import IllegalParallelism, StaleEpoch
from earl.rpc.client import Client
from earl.v1 import common_pb2, trainer_pb2
from earl.v1.trainer_pb2_grpc import TrainerServiceStub
from tests.integration.test_trainer_run import (
    WARMUP,
    balanced,
    configuration,
    done,
    running,
    saved,
    weights,
)
from tests.support.rollout import PlayedRollout

CALL_S = 60.0
# More than the commands take: the last one is carried out in the middle of the run.
STEPS = 16
DP2, TP2, CP2 = (2, 1, 1), (1, 2, 1), (1, 1, 2)


class Told:
    """The answers of the trainer to commands, while episodes are played."""

    def __init__(self, address: str, rollout: PlayedRollout) -> None:
        self.client = Client(address, TrainerServiceStub)
        self._rollout = rollout

    async def switch(
        self, epoch: int, degrees: tuple[int, int, int], tolerance: float = 1e-4
    ) -> trainer_pb2.ReparallelizeTrainerResponse:
        dp, tp, cp = degrees
        request = trainer_pb2.ReparallelizeTrainerRequest(
            epoch=epoch,
            stage=common_pb2.STAGE_TRAINER,
            parallelism=common_pb2.Parallelism(dp=dp, tp=tp, cp=cp, pp=1),
            prepare_s=CALL_S,
            quiesce_s=CALL_S,
            switch_s=CALL_S,
            verify_s=CALL_S,
            logprob_tolerance=tolerance,
            reason="the test asks for it",
        )
        asking = asyncio.create_task(self.client.call("ReparallelizeTrainer", request, deadline_s=3 * CALL_S))
        await self._rollout.play(lambda status: asking.done())
        return await asking

    async def status(self) -> trainer_pb2.GetTrainerStatusResponse:
        return await self.client.call(
            "GetTrainerStatus", trainer_pb2.GetTrainerStatusRequest(), deadline_s=CALL_S
        )


def degrees(said: common_pb2.Parallelism) -> tuple[int, int, int]:
    assert said.pp == 1
    return said.dp, said.tp, said.cp


async def test_a_run_continues_in_other_layouts(tmp_path: Path) -> None:
    config = configuration(tmp_path, ranks=2)
    longer = config.model_copy(update={"scheduler": config.scheduler.model_copy(update={"steps": STEPS})})
    async with running(longer) as (stack, rollout):
        await rollout.play(lambda status: status.version >= 3)
        told = Told(stack.processes["trainer"].address, rollout)
        answer = await told.switch(5, TP2)
        assert not answer.rolled_back, answer
        assert (answer.epoch, degrees(answer.parallelism)) == (5, TP2)
        assert answer.moved_bytes > 0 and answer.peak_extra_bytes > 0
        assert 0 < answer.stall_s <= answer.seconds
        assert answer.max_logprob_difference <= 1e-4
        status = await told.status()
        assert (status.epoch, degrees(status.parallelism)) == (5, TP2)
        # The same command again is answered alike, an older one and an impossible one are refused.
        assert await told.switch(5, TP2) == answer
        with pytest.raises(StaleEpoch):
            await told.switch(4, DP2)
        with pytest.raises(IllegalParallelism, match="use one of"):
            await told.switch(6, (2, 2, 1))
        back = await told.switch(7, CP2, tolerance=-1.0)
        assert back.rolled_back and "log-probs" in back.message
        assert degrees(back.parallelism) == TP2
        assert (await told.status()).epoch == 5
        # Version 3 or later was published in another cut, and reads whole.
        version = max(rollout.published)
        assert all(np.isfinite(array).all() for array in (await weights(rollout, version)).values())
        again = await told.switch(8, CP2)
        assert degrees(again.parallelism) == CP2 and not again.rolled_back, again
        await told.client.close()
        last = 1 + WARMUP + STEPS
        await rollout.play(lambda status: status.version == last and last in rollout.published)
        final = await weights(rollout, last)
        over = await rollout.play(done)
        assert await stack.ended("trainer") == 0, stack.log("trainer")
        assert balanced(over)
        assert over.ledger.trained == (WARMUP + STEPS) * 8
        for name, array in saved(stack.directory / "model-final" / "model.safetensors").items():
            np.testing.assert_array_equal(array, final[name], err_msg=name)
        assert not list(stack.arenas.glob("trainer-*"))
