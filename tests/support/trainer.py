"""A trainer group of one rank that a test plays: real gRPC, bus and data plane, no optimizer.

It publishes the run's initial weights as version 1 (and the same values again as later versions),
takes batches, reads their columns and commits them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from safetensors import safe_open

from benchmarks.put_tensors import put_tensors
from earl.bus import Bus
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher, SequenceRead
from earl.dispatch.registry.registry import Registry
from earl.errors import UnknownWorker
from earl.rpc.client import Client
from earl.v1 import common_pb2, events_pb2, scheduler_pb2
from earl.v1.scheduler_pb2_grpc import SchedulerServiceStub
from tests.support.stack import Stack

COLUMNS: Mapping[str, type] = {
    "tokens": np.int32,
    "loss_mask": np.uint8,
    "logprobs": np.float32,
    "versions": np.int32,
    "turns": np.int32,
}
NAME = "trainer"
CALL_S = 30.0


@dataclass(frozen=True, slots=True)
class Sequence:
    """One item of a batch and its columns."""

    item: scheduler_pb2.BatchItem
    columns: dict[str, np.ndarray]


class PlayedTrainer:
    """async with PlayedTrainer(stack) as trainer: joined, reconciled, version 1 published.

    scheduler: where it is called, the stack's own address if empty. beat_s: between heartbeats.
    wait_s: of one NextBatch call.
    """

    def __init__(
        self, stack: Stack, *, scheduler: str = "", beat_s: float = 1.0, wait_s: float = 1.0
    ) -> None:
        self._stack = stack
        self._address = scheduler or stack.scheduler
        self._beat_s = beat_s
        self._wait_s = wait_s
        self.version = 1
        self.weights: dict[str, np.ndarray] = {}

    async def __aenter__(self) -> PlayedTrainer:
        stack = self._stack
        config = stack.config.data_plane
        self.bus: Bus = await stack.bus()
        self.client = Client(self._address, SchedulerServiceStub)
        self.registry = Registry(self.bus.redis, self.bus.prefix, config.descriptor_lease_s)
        self.worker = common_pb2.Worker(
            name=NAME, incarnation=secrets.randbits(64), stage=common_pb2.STAGE_TRAINER
        )
        self.weights = initial_weights(stack)
        size_bytes = sum(array.nbytes + 4096 for array in self.weights.values())
        self.store = await TensorStore.open(
            self.registry,
            config,
            stack.arenas,
            f"{NAME}-0",
            incarnation=self.worker.incarnation,
            size_bytes=3 * size_bytes,
        )
        self.reader = await Dispatcher.create(self.registry, config)
        await self.join()
        reconcile = scheduler_pb2.ReconcileRequest(worker=self.worker, version=1, next_batch_id=1)
        await self.call("Reconcile", reconcile)
        await self.publish()
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)
        await self.reader.close()
        await self.store.close()
        await self.client.close()

    async def join(self) -> None:
        """Take part; again after the scheduler was restarted."""
        await self.call(
            "Join",
            scheduler_pb2.JoinRequest(
                worker=self.worker,
                capacity=1,
                parallelism=common_pb2.Parallelism(dp=1, tp=1, cp=1, pp=1),
            ),
        )

    async def call(self, method: str, request):
        return await self.client.call(method, request, deadline_s=CALL_S)

    async def publish(self) -> None:
        """The weights as self.version; the version before the last one goes."""
        key = f"weights/{self.version}/{NAME}-0"
        await self.store.remove(f"weights/{self.version - 2}/{NAME}-0")
        await put_tensors(self.store, key, self.weights, version=self.version)
        published = events_pb2.WeightsPublished(version=self.version, descriptor_keys=[key])
        await self.bus.publish(events_pb2.Event(weights_published=published))

    async def _beat(self) -> None:
        """Keeps the membership, whatever the test waits for meanwhile."""
        while True:
            beat = scheduler_pb2.HeartbeatRequest(worker=self.worker, version=self.version)
            try:
                await self.call("Heartbeat", beat)
            except UnknownWorker:
                await self.join()
            await asyncio.sleep(self._beat_s)

    async def next_batch(self, calls: int = 30) -> scheduler_pb2.BatchPlan | None:
        """The next plan; None when the run is over. Fails the test if none comes."""
        for _ in range(calls):
            request = scheduler_pb2.NextBatchRequest(worker=self.worker, ranks=1, wait_s=self._wait_s)
            answer = await self.call("NextBatch", request)
            if answer.stop:
                return None
            if answer.HasField("plan"):
                return answer.plan
        raise AssertionError(f"no batch in {calls} calls:\n{await self.status()}")

    async def read(self, plan: scheduler_pb2.BatchPlan) -> list[Sequence]:
        """Every column of every item, wholly."""
        sequences = [
            Sequence(item, {name: np.zeros(item.total_tokens, dtype) for name, dtype in COLUMNS.items()})
            for rank in plan.ranks
            for item in rank.items
        ]
        reads = [
            SequenceRead(
                [sequence.item.descriptor_key], np.array([sequence.item.total_tokens]), sequence.columns
            )
            for sequence in sequences
        ]
        await self.reader.read(reads, deadline_s=CALL_S)
        return sequences

    async def commit(self, plan: scheduler_pb2.BatchPlan, *, publish: bool = True) -> None:
        """Counts the batch as trained; the new version is published if the plan asks for it."""
        self.version = plan.version + 1
        await self.call(
            "CommitBatch",
            scheduler_pb2.CommitBatchRequest(
                worker=self.worker, batch_id=plan.batch_id, version=self.version, metrics={"loss": 0.5}
            ),
        )
        if plan.publish and publish:
            await self.publish()

    async def status(self) -> scheduler_pb2.GetStatusResponse:
        return await self.call("GetStatus", scheduler_pb2.GetStatusRequest())


def initial_weights(stack: Stack) -> dict[str, np.ndarray]:
    """The tensors of <run>/model, float32, by name; a tied lm_head is not among them."""
    with safe_open(stack.directory / "model" / "model.safetensors", framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
