"""Processes of the reference stage become ranks, and stop being ranks, while the stage works."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from earl.config.run import RunConfig
from earl.errors import IllegalParallelism, StaleEpoch
from earl.rpc.client import Client
from earl.v1 import trainer_pb2
from earl.v1.trainer_pb2_grpc import TrainerServiceStub
from tests.integration.test_reference_parallelism import CALL_S, SCORED, command
from tests.integration.test_reference_stage import configuration, direct, reference_keys, referenced
from tests.support.rollout import PlayedRollout
from tests.support.stack import Stack
from tests.support.trainer import PlayedTrainer, Sequence

pytestmark = pytest.mark.slow


def pooled(tmp_path: Path) -> RunConfig:
    """A pool of four devices: one of rollout, one of the trainer, two for the reference stage at most."""
    config = configuration(tmp_path, 1, 1)
    updates = {
        "scheduler": config.scheduler.model_copy(update={"steps": 9}),
        "stack": config.stack.model_copy(update={"pool_devices": 4}),
        "rollout": config.rollout.model_copy(update={"engines": 2, "device": "cpu"}),
    }
    return config.model_copy(update=updates)


async def test_log_probs_are_the_same_from_whichever_processes_are_ranks(tmp_path: Path) -> None:
    async with Stack(pooled(tmp_path)) as stack:
        await stack.up("valkey", "model", "scheduler", "reference")
        client = Client(stack.processes["reference"].address, TrainerServiceStub)

        async def tell(
            request: trainer_pb2.ReparallelizeTrainerRequest,
        ) -> trainer_pb2.ReparallelizeTrainerResponse:
            return await client.call("ReparallelizeTrainer", request, deadline_s=3 * CALL_S)

        async def status() -> trainer_pb2.GetTrainerStatusResponse:
            request = trainer_pb2.GetTrainerStatusRequest()
            return await client.call("GetTrainerStatus", request, deadline_s=CALL_S)

        async def compare(sequences: list[Sequence], expected: list[np.ndarray]) -> None:
            values, _ = await referenced(trainer.reader, sequences)
            for sequence, found, right in zip(sequences, values, expected, strict=True):
                np.testing.assert_allclose(found, right, atol=1e-5, err_msg=str(sequence.item.ticket_id))

        async with PlayedTrainer(stack) as trainer, PlayedRollout(stack) as rollout:
            before = await status()
            # Before the policy is loaded there is nothing to compare; afterwards it is.
            for epoch, dp, tp in ((1, 2, 1), (4, 1, 1), (7, 1, 2)):
                answer = await tell(command(epoch, dp, tp))
                assert not answer.rolled_back, answer
                assert (answer.epoch, answer.parallelism.dp, answer.parallelism.tp) == (epoch, dp, tp)
                assert answer.figures.logprobs_compared in ((0, SCORED) if epoch == 1 else (SCORED,))
                assert answer.max_logprob_difference <= 1e-4 and answer.figures.stall_s > 0
                assert await tell(command(epoch, dp, tp)) == answer, "one command has one answer"
                await rollout.play(lambda seen: seen.ledger.ready >= 16)
                plan = await trainer.next_batch()
                assert plan is not None
                sequences = await trainer.read(plan)
                right = direct(stack.directory / "model", sequences)
                await compare(sequences, right)
                # Other ranks compute something else, as it seems: the former ones take over again. What was
                # computed before is there all the while, in processes that are no ranks now.
                kept = await tell(command(epoch + 1, 3 - dp * tp, 1, tolerance=-1.0))
                assert kept.rolled_back and "log-probs" in kept.message
                assert (kept.parallelism.dp, kept.parallelism.tp) == (dp, tp)
                await compare(sequences, right)
                await trainer.commit(plan)
            after = await status()
            assert (after.epoch, after.parallelism.tp) == (7, 2)
            assert after.worker.incarnation == before.worker.incarnation, "one life of one worker"
            # A process that is no rank any more serves what it computed, until that is trained.
            await rollout.play(lambda seen: seen.ledger.ready >= 16)
            plan = await trainer.next_batch()
            assert plan is not None
            sequences = await trainer.read(plan)
            keys = {key for sequence in sequences for key in reference_keys(sequence.item)}
            assert {key.rsplit("/", 1)[1] for key in keys} == {"0", "1"}
            alone = await tell(command(10, 1, 1))
            assert not alone.rolled_back, alone
            await compare(sequences, direct(stack.directory / "model", sequences))
            await trainer.commit(plan)
            names = [f"{trainer.bus.prefix}descriptor:{key}" for key in keys]
            for _ in range(500):
                if not await trainer.bus.redis.exists(*names):
                    break
                await asyncio.sleep(0.02)
            else:
                raise AssertionError(f"still there: {names}")
            with pytest.raises(StaleEpoch):
                await tell(command(6, 2, 1))
            with pytest.raises(IllegalParallelism, match="2 processes"):
                await tell(command(20, 3, 1))
        await client.close()
        assert await stack.terminate("reference") == 0, stack.log("reference")
    assert not list(stack.arenas.glob("reference-*"))


async def test_sequences_that_end_while_ranks_change_are_computed(tmp_path: Path) -> None:
    async with Stack(pooled(tmp_path)) as stack:
        await stack.up("valkey", "model", "scheduler", "reference")
        client = Client(stack.processes["reference"].address, TrainerServiceStub)
        async with PlayedTrainer(stack) as trainer, PlayedRollout(stack) as rollout:
            for epoch, dp in enumerate((2, 1, 2, 1), 1):
                request = command(epoch, dp, 1)
                change = client.call("ReparallelizeTrainer", request, deadline_s=3 * CALL_S)
                changing = asyncio.create_task(change)
                await rollout.play(lambda status: status.ledger.ready >= 16)
                plan = await trainer.next_batch()
                assert plan is not None
                sequences = await trainer.read(plan)
                values, _ = await referenced(trainer.reader, sequences)
                for found, right in zip(values, direct(stack.directory / "model", sequences), strict=True):
                    np.testing.assert_allclose(found, right, atol=1e-5)
                answer = await changing
                assert not answer.rolled_back, answer
                await trainer.commit(plan)
            assert not (await trainer.status()).ledger.dropped
        await client.close()
        assert await stack.terminate("reference") == 0, stack.log("reference")
