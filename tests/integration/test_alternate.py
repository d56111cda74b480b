"""stack.share = "alternate" among real processes: engines sleep while a batch is trained."""

from __future__ import annotations

import asyncio

from tests.support.preloaded import started_by
from tests.support.runs import tictactoe
from tests.support.stack import Stack
from tests.support.trainer import PlayedTrainer

TURNS = {"stack": {"share": "alternate"}}


async def asleep(trainer: PlayedTrainer, wanted: bool) -> None:
    """Returns when the worker reports its engines so."""
    async with asyncio.timeout(60):
        while True:
            workers = {one.worker.name: one for one in (await trainer.status()).workers}
            if workers["rollout-0"].gauges.get("asleep") == float(wanted):
                return
            await asyncio.sleep(0.05)


async def test_engines_sleep_while_a_batch_is_trained_and_a_death_in_their_sleep_costs_nothing(tmp_path):
    config = tictactoe(
        tmp_path,
        **TURNS,
        # More tickets than a batch: some are in progress when it is complete.
        scheduler={"selector": "static", "staleness": 1, "batch_groups": 2, "attempts": 1},
        warmup={"batches": 0},
        rollout={"engine_restarts": 1},
    )
    stack = Stack(config)
    async with stack:
        await stack.up("valkey", "model", "scheduler", "gateway", "env-0")
        async with PlayedTrainer(stack) as trainer:
            worker = await stack.start("rollout-0")
            trained = 0
            while (plan := await trainer.next_batch()) is not None:
                await asleep(trainer, True)
                assert (await trainer.status()).devices == "trainer"
                await trainer.read(plan)
                if not trained:
                    (engine,) = started_by(worker.pid)
                    engine.kill()
                    engine.wait(30)
                await trainer.commit(plan)
                trained += 1
            assert trained == 2
            ledger = (await trainer.status()).ledger
            live = ledger.pending + ledger.leased + ledger.ready + ledger.planned
            assert ledger.issued == ledger.trained + ledger.evaluated + sum(ledger.dropped.values()) + live
            assert (ledger.trained, ledger.evaluated, ledger.dropped) == (16, 8, {})
        assert await stack.ended("rollout-0") == 0
