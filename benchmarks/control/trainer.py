"""The process of the simulated trainer group: it takes batches, commits them at once and records them.

    NextBatch ─► every id into a bitmap ─► CommitBatch ─► WeightsPublished ─► RecordCheckpoint (if asked for)

What it counts is what real parameters would hold: a ticket that came twice would be trained twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from benchmarks.dispatch.lines import answer, commands, main
from benchmarks.gateway.player import quantile
from earl.bus import Bus
from earl.rpc.client import Client
from earl.ticket_ranges import RangeSet
from earl.v1 import common_pb2, events_pb2, scheduler_pb2
from earl.v1.scheduler_pb2_grpc import SchedulerServiceStub

RPC_S = 60.0
WAIT_S = 2.0
SHARDS = 4
METRICS: dict[str, float] = dict.fromkeys(
    (
        "loss", "entropy", "clip_fraction", "grad_norm", "kl", "ratio_max", "read_s", "train_s", "lr",
        "train_tokens_per_s", "memory_fraction", "advantage_std", "microbatches", "publish_s",
    ),
    0.5,
)  # fmt: skip


class SimulatedTrainer:
    """A simulated trainer. ranks: how many ranks a batch is split over.

    It calls the scheduler without earl.scheduler_client.SchedulerClient, which joins again and asks once more
    where the scheduler has given the worker up. Here that ends the measurement, and no latency is that of two
    calls.
    """

    def __init__(self, client: Client, bus: Bus, ranks: int, heartbeat_s: float) -> None:
        self._client = client
        self._bus = bus
        self._ranks = ranks
        self._heartbeat_s = heartbeat_s
        self._worker = common_pb2.Worker(
            name="trainer", incarnation=1, stage=common_pb2.STAGE_TRAINER, address="127.0.0.1:1"
        )
        self._trained_once = bytearray()
        # When the call that recorded the ticket in a checkpoint was sent, on this machine's monotonic clock.
        self._checkpointed_s: dict[int, float] = {}
        self._fresh: list[int] = []
        self._consumed = RangeSet()
        self._latencies: dict[str, list[float]] = {}
        self.trained = self.twice = self.batches = self.version = 0
        self.over = asyncio.Event()

    async def start(self) -> None:
        """Joins with no tickets."""
        await self._call("Join", scheduler_pb2.JoinRequest(worker=self._worker, capacity=self._ranks))
        self.version = 1
        await self._call(
            "Reconcile", scheduler_pb2.ReconcileRequest(worker=self._worker, version=1, next_batch_id=1)
        )
        await self._publish()

    async def train(self) -> None:
        """Trains until the run ends."""
        while not self.over.is_set():
            request = scheduler_pb2.NextBatchRequest(worker=self._worker, ranks=self._ranks, wait_s=WAIT_S)
            answered = await self._call("NextBatch", request)
            if answered.HasField("plan"):
                await self._step(answered.plan)

    async def heartbeat(self) -> None:
        while True:
            request = scheduler_pb2.HeartbeatRequest(worker=self._worker, version=self.version)
            await self._call("Heartbeat", request)
            await asyncio.sleep(self._heartbeat_s)

    def take_latencies(self) -> dict[str, Any]:
        """Latencies since the last call, in milliseconds by method."""
        latencies = {name: sorted(values) for name, values in self._latencies.items() if values}
        self._latencies.clear()
        return {
            name: {
                "calls": len(values),
                "p50_ms": quantile(values, 0.5) * 1e3,
                "p99_ms": quantile(values, 0.99) * 1e3,
                "max_ms": values[-1] * 1e3,
            }
            for name, values in latencies.items()
        }

    async def _step(self, plan: scheduler_pb2.BatchPlan) -> None:
        numbers = [item.ticket_id for rank in plan.ranks for item in rank.items]
        if max(numbers) >= len(self._trained_once):
            self._trained_once.extend(bytes(max(numbers) + 1 - len(self._trained_once) + (1 << 16)))
        for number in numbers:
            self.twice += self._trained_once[number]
            self._trained_once[number] = 1
        self._fresh += numbers
        self.trained += len(numbers)
        self.batches += 1
        self.version = plan.version + 1
        request = scheduler_pb2.CommitBatchRequest(
            worker=self._worker, batch_id=plan.batch_id, version=self.version, metrics=METRICS
        )
        await self._call("CommitBatch", request)
        if plan.publish:
            await self._publish()
        if plan.checkpoint:
            self._consumed |= RangeSet.of(self._fresh)
            self._checkpointed_s |= dict.fromkeys(self._fresh, time.monotonic())
            self._fresh.clear()
            ranges = [scheduler_pb2.TicketRange(start=a, stop=b) for a, b in self._consumed.ranges]
            await self._call(
                "RecordCheckpoint",
                scheduler_pb2.RecordCheckpointRequest(
                    worker=self._worker, version=self.version, path="checkpoint", consumed=ranges
                ),
            )

    def checkpointed_s(self, tickets: Iterable[int]) -> dict[int, float]:
        """Returns for each of these tickets that a checkpoint holds when it was sent with it, in seconds."""
        return {ticket: self._checkpointed_s[ticket] for ticket in tickets if ticket in self._checkpointed_s}

    async def _publish(self) -> None:
        keys = [f"weights/{self.version}/{shard}" for shard in range(SHARDS)]
        published = events_pb2.WeightsPublished(version=self.version, descriptor_keys=keys)
        await self._bus.publish(events_pb2.Event(weights_published=published))

    async def _call(self, method: str, request: Any) -> Any:
        began = time.perf_counter()
        answered = await self._client.call(method, request, deadline_s=RPC_S)
        self._latencies.setdefault(method, []).append(time.perf_counter() - began)
        return answered


async def serve(role: dict[str, Any]) -> None:
    """Trains from the start, reports on request, and ends after a batch on "stop"."""
    client = Client(role["address"], SchedulerServiceStub)
    bus = await Bus.connect(role["redis_url"], role["run"], source="trainer")
    trainer = SimulatedTrainer(client, bus, role["ranks"], role["heartbeat_s"])
    await trainer.start()
    beating = asyncio.create_task(trainer.heartbeat())
    training = asyncio.create_task(trainer.train())
    answer(ready=True)
    async for work in commands():
        if training.done() or work["do"] == "stop":
            trainer.over.set()
            await training
        answer(
            trained=trainer.trained,
            twice=trainer.twice,
            batches=trainer.batches,
            version=trainer.version,
            rpcs=trainer.take_latencies(),
            checkpointed_s=trainer.checkpointed_s(work.get("tickets", ())),
        )
    beating.cancel()
    await client.close()
    await bus.close()


if __name__ == "__main__":
    main({"trainer": serve})
