"""The scheduler as values, for the rank that speaks for the group: one method, one call.

Promise: a scheduler that is away is waited for up to PATIENCE_S a call and then raised as
ServiceUnavailable; one that no longer knows this trainer is joined again, once a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from earl.errors import UnknownWorker
from earl.rpc.client import Client
from earl.v1 import common_pb2, scheduler_pb2
from earl.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.trainer.activity import Span, Transfer

PATIENCE_S = 30.0
Ranges = Sequence[tuple[int, int]]


class SchedulerLink:
    """Speaks for a trainer group of `ranks`."""

    def __init__(self, address: str, token: str, *, name: str, incarnation: int, ranks: int) -> None:
        self._client = Client(address, SchedulerServiceStub, token=token)
        self.worker = common_pb2.Worker(name=name, incarnation=incarnation, stage=common_pb2.STAGE_TRAINER)
        self.ranks = ranks
        # Heartbeats and calls may both find out that the scheduler forgot this trainer: join once.
        self._joining = asyncio.Lock()
        self._joins = 0

    async def join(self, address: str) -> tuple[float, int]:
        """(membership lease in seconds, epoch). address: host:port of the trainer's own server."""
        self.worker.address = address
        return await self._join()

    async def _join(self) -> tuple[float, int]:
        request = scheduler_pb2.JoinRequest(
            worker=self.worker,
            capacity=self.ranks,
            parallelism=common_pb2.Parallelism(dp=self.ranks, tp=1, cp=1, pp=1),
        )
        answer = await self._client.call("Join", request, deadline_s=PATIENCE_S)
        self._joins += 1
        return answer.lease_s, answer.epoch

    async def reconcile(self, version: int, next_batch_id: int, consumed: Ranges) -> int:
        """The ledger is brought to what these parameters were trained on; tickets rolled back."""
        request = scheduler_pb2.ReconcileRequest(
            worker=self.worker, version=version, next_batch_id=next_batch_id, consumed=_ranges(consumed)
        )
        return (await self._call("Reconcile", request, PATIENCE_S)).rolled_back

    async def next_batch(self, wait_s: float) -> tuple[bytes, bool]:
        """(serialised plan, empty if none was ready in time; whether the run is over)."""
        request = scheduler_pb2.NextBatchRequest(worker=self.worker, ranks=self.ranks, wait_s=wait_s)
        answer = await self._call("NextBatch", request, wait_s + PATIENCE_S)
        return answer.plan.SerializeToString() if answer.HasField("plan") else b"", answer.stop

    async def commit(
        self, batch_id: int, version: int, metrics: Mapping[str, float], deadline_s: float = PATIENCE_S
    ) -> None:
        """The optimizer step on the batch is done; version: after it."""
        request = scheduler_pb2.CommitBatchRequest(
            worker=self.worker, batch_id=batch_id, version=version, metrics=metrics
        )
        await self._call("CommitBatch", request, deadline_s)

    async def record_checkpoint(
        self, version: int, path: str, consumed: Ranges, deadline_s: float = PATIENCE_S
    ) -> None:
        """A manifest was renamed into place."""
        request = scheduler_pb2.RecordCheckpointRequest(
            worker=self.worker, version=version, path=path, consumed=_ranges(consumed)
        )
        await self._call("RecordCheckpoint", request, deadline_s)

    async def heartbeat(
        self, version: int, gauges: Mapping[str, float], spans: Sequence[Span], transfers: Sequence[Transfer]
    ) -> bool:
        """Whether the run is over."""
        request = scheduler_pb2.HeartbeatRequest(
            worker=self.worker, running=self.ranks, version=version, gauges=gauges
        )
        for span in spans:
            request.spans.add(what=span.what, start_ns=span.start_ns, end_ns=span.end_ns)
        for one in transfers:
            request.transfers.add(
                path=one.path, size_bytes=one.size_bytes, seconds=one.seconds, transfers=one.transfers
            )
        return (await self._call("Heartbeat", request, PATIENCE_S)).stop

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, method: str, request, deadline_s: float):
        joins = self._joins
        try:
            return await self._client.call(method, request, deadline_s=deadline_s)
        except UnknownWorker:
            async with self._joining:
                if joins == self._joins:
                    await self._join()
            return await self._client.call(method, request, deadline_s=deadline_s)


def _ranges(ranges: Ranges) -> list[scheduler_pb2.TicketRange]:
    return [scheduler_pb2.TicketRange(start=start, stop=stop) for start, stop in ranges]
