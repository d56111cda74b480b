"""The reference stage changes its cut between leases: the same log-probs, from other ranks' slices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from earl.errors import IllegalParallelism, StaleEpoch
from earl.rpc.client import Client
from earl.v1 import common_pb2, trainer_pb2
from earl.v1.trainer_pb2_grpc import TrainerServiceStub
from services.trainer.reshard.switch import CANARIES, CANARY_TOKENS
from tests.integration.test_reference_stage import configuration, direct, reference_keys, referenced
from tests.support.rollout import PlayedRollout
from tests.support.stack import Stack, audited
from tests.support.trainer import PlayedTrainer

CALL_S = 60.0
# The first token of a canary has no log-prob.
SCORED = CANARIES * (CANARY_TOKENS - 1)


def command(epoch: int, dp: int, tp: int, tolerance: float = 1e-4) -> trainer_pb2.ReparallelizeTrainerRequest:
    return trainer_pb2.ReparallelizeTrainerRequest(
        epoch=epoch,
        stage=common_pb2.STAGE_REFERENCE,
        parallelism=common_pb2.Parallelism(dp=dp, tp=tp, cp=1, pp=1),
        prepare_s=CALL_S,
        quiesce_s=CALL_S,
        switch_s=CALL_S,
        verify_s=CALL_S,
        logprob_tolerance=tolerance,
    )


@pytest.mark.slow
async def test_log_probs_are_the_decoders_in_every_layout(tmp_path: Path) -> None:
    async with Stack(configuration(tmp_path, 2, 1)) as stack:
        await stack.up("valkey", "model", "scheduler", "reference")
        client = Client(stack.processes["reference"].address, TrainerServiceStub)

        async def tell(
            request: trainer_pb2.ReparallelizeTrainerRequest,
        ) -> trainer_pb2.ReparallelizeTrainerResponse:
            return await client.call("ReparallelizeTrainer", request, deadline_s=3 * CALL_S)

        async with PlayedTrainer(stack) as trainer, PlayedRollout(stack) as rollout:
            for epoch, (dp, tp) in ((1, (1, 2)), (3, (2, 1))):
                answer = await tell(command(epoch, dp, tp))
                assert not answer.rolled_back, answer
                assert (answer.epoch, answer.parallelism.dp, answer.parallelism.tp) == (epoch, dp, tp)
                assert answer.max_logprob_difference <= 1e-4
                # Before the policy is loaded there is nothing to compare.
                assert answer.figures.logprobs_compared in ((0, SCORED) if epoch == 1 else (SCORED,))
                # Whoever has all of the policy needs nothing of others.
                assert (answer.moved_bytes > 0) == (tp == 1)
                await rollout.play(lambda status: status.ledger.ready >= 16)
                plan = await trainer.next_batch()
                assert plan is not None
                sequences = await trainer.read(plan)
                assert {len(reference_keys(one.item)) for one in sequences} == {tp}
                found, _ = await referenced(trainer.reader, sequences)
                for one, values, expected in zip(
                    sequences, found, direct(stack.directory / "model", sequences), strict=True
                ):
                    np.testing.assert_allclose(values, expected, atol=1e-5, err_msg=str(one.item.ticket_id))
                await trainer.commit(plan)
                back = await tell(command(epoch + 1, tp, dp, tolerance=-1.0))
                assert back.rolled_back and "log-probs" in back.message
                assert (back.parallelism.dp, back.parallelism.tp) == (dp, tp)
            status = await client.call(
                "GetTrainerStatus", trainer_pb2.GetTrainerStatusRequest(), deadline_s=CALL_S
            )
            assert (status.epoch, status.parallelism.dp) == (3, 2)
            with pytest.raises(StaleEpoch):
                await tell(command(2, 1, 2))
            with pytest.raises(IllegalParallelism, match="product is 2"):
                await tell(command(9, 2, 2))
            assert ("ReparallelizeTrainer", "ok") in audited(stack.directory, "reference")
        await client.close()
        assert await stack.terminate("reference") == 0, stack.log("reference")
