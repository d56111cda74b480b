"""Checks when workers count as lost, as a worker learns it from a real scheduler whose fleet grows."""

from __future__ import annotations

from pathlib import Path

from earl.parallelism import Parallelism
from earl.rpc import Client
from earl.rpc.access import OPEN
from earl.scheduler_client import SchedulerClient
from earl.v1 import common_pb2, scheduler_pb2
from earl.v1.scheduler_pb2_grpc import SchedulerServiceStub
from tests.support.runs import tictactoe
from tests.support.stack import Stack

CALL_S = 20.0
# All members together, each second: with this few a fleet of two is a large one.
BEATS = 0.05
MISSED = 3


async def test_workers_of_a_larger_fleet_count_as_lost_later(
    tmp_path: Path,
) -> None:
    async with Stack(tictactoe(tmp_path, scheduler={"heartbeats_per_s": BEATS})) as stack:
        await stack.up("valkey", "model", "scheduler")
        scheduler = SchedulerClient(
            stack.scheduler,
            OPEN,
            stage="trainer",
            name="trainer",
            incarnation=1,
            capacity=1,
            parallelism=Parallelism(),
            heartbeat_s=1.0,
        )
        client = Client(stack.scheduler, SchedulerServiceStub)
        try:
            joined = await scheduler.join("127.0.0.1:9")
            assert scheduler.lost_after_s == joined.lease_s == MISSED / BEATS
            for number in range(4):
                worker = common_pb2.Worker(
                    name=f"rollout-{number}", incarnation=1, stage=common_pb2.STAGE_ROLLOUT
                )
                parallelism = common_pb2.Parallelism(dp=1, tp=1, cp=1, pp=1)
                request = scheduler_pb2.JoinRequest(worker=worker, capacity=1, parallelism=parallelism)
                await client.call("Join", request, deadline_s=CALL_S)
            reply = await scheduler.heartbeat(running=1, version=1, gauges={}, spans=[], transfers=[])
            assert not reply.stop
            assert scheduler.lost_after_s >= 5 * MISSED / BEATS
        finally:
            await client.close()
            await scheduler.close()
