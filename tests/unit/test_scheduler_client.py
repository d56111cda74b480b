"""A worker's membership, against a gRPC server on loopback that forgets workers when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from earl.errors import UnknownWorker
from earl.parallelism import Parallelism
from earl.rpc.access import OPEN
from earl.rpc.server import Server
from earl.scheduler_client import HeartbeatReply, SchedulerClient
from earl.v1 import scheduler_pb2
from earl.v1.scheduler_pb2_grpc import SchedulerServiceServicer, add_SchedulerServiceServicer_to_server
from earl.worker_report import BusySpan, TransferTotals, WorkerDevice

CALLS = 5


class Forgetful(SchedulerServiceServicer):
    """Refuses workers that have not joined since `forget`; calls that are refused wait for each other."""

    def __init__(self) -> None:
        self.known = False
        self.joins: list[scheduler_pb2.JoinRequest] = []
        self.next_s = 6.0
        self.heartbeats: list[scheduler_pb2.HeartbeatRequest] = []
        self.refusals = asyncio.Barrier(CALLS)

    async def Join(self, request, context):
        self.known = True
        self.joins.append(request)
        return scheduler_pb2.JoinResponse(lease_s=9.0, version=4, weight_keys=["weights/4"])

    async def Heartbeat(self, request, context):
        if not self.known:
            raise UnknownWorker("no worker trainer", "join again")
        self.heartbeats.append(request)
        return scheduler_pb2.HeartbeatResponse(stop=True, next_s=self.next_s)

    async def NextBatch(self, request, context):
        if not self.known:
            await self.refusals.wait()
            raise UnknownWorker("no worker trainer", "join again")
        return scheduler_pb2.NextBatchResponse()


@asynccontextmanager
async def joined(rejoins: list[str]) -> AsyncIterator[tuple[Forgetful, SchedulerClient]]:
    servicer, server = Forgetful(), Server("scheduler", "127.0.0.1:0")
    server.add(add_SchedulerServiceServicer_to_server, servicer, "earl.v1.SchedulerService")
    client = SchedulerClient(
        await server.start(),
        OPEN,
        stage="trainer",
        name="trainer",
        incarnation=7,
        capacity=4,
        parallelism=Parallelism(dp=4),
        heartbeat_s=5.0,
        retry_s=10.0,
        on_rejoin=lambda: rejoins.append("rejoined"),
    )
    try:
        membership = await client.join("127.0.0.1:9")
        assert (membership.lease_s, membership.version, membership.weight_keys) == (9.0, 4, ("weights/4",))
        yield servicer, client
    finally:
        await client.close()
        await server.stop()


async def test_calls_that_are_refused_together_join_again_once() -> None:
    rejoins: list[str] = []
    async with joined(rejoins) as (servicer, client):
        assert rejoins == []
        client.set_parallelism(Parallelism(dp=2, tp=2), 3)
        servicer.known = False
        calls = (client.call("NextBatch", scheduler_pb2.NextBatchRequest()) for _ in range(CALLS))
        await asyncio.gather(*calls)
    assert rejoins == ["rejoined"]
    first, again = servicer.joins
    assert (first.worker.address, first.worker.incarnation, first.capacity) == ("127.0.0.1:9", 7, 4)
    assert again.worker == first.worker
    assert (first.parallelism.dp, again.parallelism.dp, again.parallelism.tp) == (4, 2, 2)


async def test_a_heartbeat_reports_the_parallelism_that_is_in_use_now() -> None:
    async with joined([]) as (servicer, client):
        assert client.lost_after_s == 9.0
        client.set_parallelism(Parallelism(dp=2, tp=2), 3)
        reply = await client.heartbeat(
            running=4,
            version=8,
            gauges={"train_s": 0.5},
            spans=[BusySpan("training", 1, 2)],
            transfers=[TransferTotals(path="shm", size_bytes=3, seconds=0.25, transfers=1, retries=2)],
        )
        assert reply == HeartbeatReply(stop=True, next_s=6.0)
        # Four times as long as the time until the next heartbeat: a fleet that has grown since the join.
        assert client.lost_after_s == 24.0
    (request,) = servicer.heartbeats
    assert (request.running, request.version, request.epoch, request.parallelism.tp) == (4, 8, 3, 2)
    assert (request.spans[0].what, request.spans[0].start_ns, request.spans[0].end_ns) == ("training", 1, 2)
    total = request.transfers[0]
    assert (total.path, total.size_bytes, total.seconds) == ("shm", 3, 0.25)
    assert (total.transfers, total.retries, dict(request.gauges)) == (1, 2, {"train_s": 0.5})


async def test_devices_are_reported_with_every_heartbeat_and_with_the_next_join() -> None:
    async with joined([]) as (servicer, client):
        client.devices = [WorkerDevice("cuda", "GPU-a", 3, 80 << 30, 70 << 30)] * 2
        await client.heartbeat(running=0, version=0, gauges={}, spans=[], transfers=[])
        servicer.known = False
        await client.heartbeat(running=0, version=0, gauges={}, spans=[], transfers=[])
    reported = [device for heartbeat in servicer.heartbeats for device in heartbeat.devices]
    reported += servicer.joins[1].devices
    assert len(reported) == 6 and not servicer.joins[0].devices
    assert {
        (one.kind, one.id, one.number, one.total_bytes >> 30, one.free_bytes >> 30) for one in reported
    } == {("cuda", "GPU-a", 3, 80, 70)}


async def test_where_the_scheduler_sets_no_time_heartbeats_come_by_the_configuration() -> None:
    async with joined([]) as (servicer, client):
        servicer.next_s = 0.0
        # A third of the membership that the scheduler gave: the configuration names more.
        assert client.heartbeat_s == 3.0
        reply = await client.heartbeat(running=0, version=0, gauges={}, spans=[], transfers=[])
        assert reply == HeartbeatReply(stop=True, next_s=3.0)
