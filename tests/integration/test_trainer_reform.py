"""A trainer whose processes become ranks, and stop being ranks, while a run is going."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from earl.errors import IllegalParallelism, StaleEpoch
from tests.integration.test_trainer_parallelism import DP2, TP2, Told, degrees
from tests.integration.test_trainer_run import WARMUP, balanced, configuration, done, running, saved, weights

ALONE, DP3 = (1, 1, 1), (3, 1, 1)
STEPS = 18


async def test_processes_become_ranks_and_leave_again_at_step_boundaries(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    updates = {
        "scheduler": config.scheduler.model_copy(update={"steps": STEPS}),
        # Two engines and a rank of three devices: the trainer has two processes, and one of them waits.
        "stack": config.stack.model_copy(update={"pool_devices": 3}),
        "rollout": config.rollout.model_copy(update={"engines": 2, "device": "cpu"}),
    }
    async with running(config.model_copy(update=updates)) as (stack, rollout):
        await rollout.play(lambda status: status.version >= 3)
        told = Told(stack.processes["trainer"].address, rollout)
        before = await told.status()
        assert degrees(before.parallelism) == ALONE
        answer = await told.switch(5, DP2)
        assert not answer.rolled_back, answer
        assert (answer.epoch, degrees(answer.parallelism)) == (5, DP2)
        assert 0 < answer.stall_s <= answer.seconds
        phases = dict(answer.figures.phases_s)
        assert {"saving", "groups", "loading", "canaries after", "publishing"} <= phases.keys()
        assert 0 < sum(phases.values()) <= answer.stall_s
        assert answer.max_logprob_difference <= 1e-4
        status = await told.status()
        assert (status.epoch, degrees(status.parallelism)) == (5, DP2)
        # Still one life of one worker, and the same command again is answered alike.
        assert status.worker.incarnation == before.worker.incarnation
        assert await told.switch(5, DP2) == answer
        with pytest.raises(StaleEpoch):
            await told.switch(4, ALONE)
        with pytest.raises(IllegalParallelism, match="2 processes"):
            await told.switch(6, DP3)
        kept = await told.switch(7, ALONE, tolerance=-1.0)
        assert kept.rolled_back and "log-probs" in kept.message
        assert degrees(kept.parallelism) == DP2
        assert (await told.status()).epoch == 5
        other = await told.switch(8, TP2)
        assert not other.rolled_back and degrees(other.parallelism) == TP2, other
        alone = await told.switch(9, ALONE)
        assert not alone.rolled_back and degrees(alone.parallelism) == ALONE, alone
        await told.client.close()
        last = 1 + WARMUP + STEPS
        await rollout.play(lambda status: status.version == last and last in rollout.published)
        final = await weights(rollout, last)
        over = await rollout.play(done)
        assert await stack.ended("trainer") == 0, stack.log("trainer")
        assert balanced(over)
        # Every batch once: nothing was lost, and nothing trained twice.
        assert over.ledger.trained == (WARMUP + STEPS) * 8
        assert "rolled_back" not in over.ledger.dropped
        for name, array in saved(stack.directory / "model-final" / "model.safetensors").items():
            np.testing.assert_array_equal(array, final[name], err_msg=name)
        assert not list(stack.arenas.glob("trainer-*"))
