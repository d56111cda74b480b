"""A fleet that changes while it trains: rollout workers and env hosts come, are drained, are lost.

Losing one is no incident: what it held is played by others, the ledger's equation holds at every moment, and
training goes on.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from earl.bus import Bus
from earl.stack.codec import OperatorClient
from earl.stack.status import RunStatus
from tests.support.runs import tictactoe
from tests.support.stack import Stack, until

WAIT_S = 90.0


class Watch:
    """The run as the scheduler reports it; each look checks the ledger's equation."""

    def __init__(self, stack: Stack, bus: Bus) -> None:
        self._client = OperatorClient(stack.scheduler)
        self._bus = bus

    async def look(self) -> RunStatus:
        status = await self._client.status(10.0)
        ledger = status.ledger
        live = ledger.pending + ledger.leased + ledger.ready + ledger.planned
        assert ledger.issued == ledger.trained + ledger.evaluated + sum(ledger.dropped.values()) + live
        return status

    async def trained(self, steps: int) -> RunStatus:
        """Waits until this many more steps are done."""
        wanted = (await self.look()).version + steps
        async with asyncio.timeout(WAIT_S):
            while (status := await self.look()).version < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return status

    async def plays(self, worker: str) -> None:
        """Waits until a trajectory of this worker has been accepted."""
        events = self._bus.follow(await self._bus.last_id(trajectories=True), trajectories=True)
        while (await until(events, "trajectory_ready", WAIT_S)).worker != worker:
            pass

    async def left(self, worker: str, after: str) -> str:
        """Returns why this worker left, once it has."""
        events = self._bus.follow(after)
        while (fact := await until(events, "worker_left", WAIT_S)).worker.name != worker:
            pass
        return fact.reason

    async def close(self) -> None:
        await self._client.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_workers_and_hosts_come_and_go_while_a_run_trains(tmp_path: Path) -> None:
    config = tictactoe(
        tmp_path,
        environment={"hosts": 2},
        rollout={"workers": 3, "drain_s": 5.0, "linger_s": 10.0},
        scheduler={"steps": 10_000, "staleness": 1, "membership_s": 3.0, "heartbeat_s": 0.3, "attempts": 10},
        warmup={"batches": 0},
    )
    async with Stack(config) as stack:
        await stack.up("valkey", "model", "scheduler", "gateway", "env-0", "rollout-0", "trainer")
        bus = await stack.bus()
        watch = Watch(stack, bus)
        try:
            await watch.trained(2)
            # They join a training that goes on.
            await stack.up("env-1", "rollout-1", "rollout-2")
            await watch.plays("rollout-1")
            await watch.trained(1)

            # A worker is drained: it finishes, reports, and is gone; nothing waits for a lease to end.
            after = await bus.last_id()
            assert await stack.terminate("rollout-1") == 0
            assert await watch.left("rollout-1", after) == "drained"
            assert "rollout-1" not in {worker.name for worker in (await watch.look()).workers}
            assert list(stack.arenas.glob("rollout-1-*")) == []
            assert await stack.terminate("env-1") == 0
            status = await watch.trained(2)
            assert status.ledger.dropped == {}

            # Another is lost without a word, and a host with it: leases end, others play on.
            await stack.start("env-1")
            await watch.plays("rollout-2")
            after = await bus.last_id()
            await stack.kill("rollout-2")
            await stack.kill("env-1")
            assert (await watch.left("rollout-2", after)).startswith("sent nothing for")
            status = await watch.trained(2)
            assert status.ledger.dropped == {}

            # One comes back under its name.
            await stack.start("rollout-1")
            await watch.plays("rollout-1")
            await watch.trained(1)
        finally:
            await watch.close()


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_a_fleet_shrinks_to_nothing_and_grows_again(tmp_path: Path) -> None:
    """The only worker is drained in the middle of its games: the run waits and goes on with the next one."""
    config = tictactoe(
        tmp_path,
        rollout={"workers": 2, "drain_s": 0.0},
        scheduler={"steps": 10_000, "membership_s": 60.0, "attempts": 1},
        warmup={"batches": 0},
    )
    async with Stack(config) as stack:
        await stack.up("valkey", "model", "scheduler", "gateway", "env-0", "rollout-0", "trainer")
        watch = Watch(stack, await stack.bus())
        try:
            await watch.trained(1)
            assert await stack.terminate("rollout-0") == 0
            ledger = (await watch.look()).ledger
            assert (ledger.leased, ledger.ready) == (0, 0) and ledger.pending, "long before any lease ends"
            assert ledger.dropped == {}, "an attempt was held against the tickets"
            await stack.start("rollout-1")
            status = await watch.trained(2)
            assert status.ledger.dropped == {}
        finally:
            await watch.close()
