"""The scheduler's client of the trainer: batches to train, and the state of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from earl.scheduler_client import SchedulerClient
from earl.v1 import scheduler_pb2

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class NextBatch:
    """The scheduler's answer to a trainer that asks for work.

    plan: a serialised BatchPlan, empty if none was ready in time. run_ended: train what is planned, then end.
    best: version with the best evaluation so far, 0 if there is none. held: versions whose checkpoints must
    stay.
    """

    plan: bytes
    run_ended: bool
    best: int
    held: frozenset[int]


class BatchClient:
    """Calls of the rank that speaks for the trainer. Each raises as SchedulerClient.call."""

    def __init__(self, scheduler: SchedulerClient) -> None:
        self._scheduler = scheduler

    async def reconcile(self, version: int, next_batch_id: int, consumed: Ranges) -> int:
        """Brings the ledger to what these parameters were trained on; returns how many tickets were rolled
        back. consumed: half-open ranges of ticket ids."""
        request = scheduler_pb2.ReconcileRequest(
            worker=self._scheduler.worker,
            version=version,
            next_batch_id=next_batch_id,
            consumed=_ranges(consumed),
        )
        return (await self._scheduler.call("Reconcile", request)).rolled_back

    async def next_batch(self, wait_s: float, lost_replays: Sequence[int] = ()) -> NextBatch:
        """The next batch, planned for the trainer's dp replicas; waits up to wait_s for one. lost_replays:
        tickets of the last plan that are to leave it, for their files cannot be read."""
        request = scheduler_pb2.NextBatchRequest(
            worker=self._scheduler.worker,
            ranks=self._scheduler.parallelism.dp,
            wait_s=wait_s,
            lost_replays=lost_replays,
        )
        answer = await self._scheduler.call("NextBatch", request, wait_s=wait_s)
        plan = answer.plan.SerializeToString() if answer.HasField("plan") else b""
        return NextBatch(plan, answer.stop, answer.best_version, frozenset(answer.keep_versions))

    async def commit(
        self, batch_id: int, version: int, metrics: Mapping[str, float], deadline_s: float
    ) -> None:
        """Reports that a batch is trained. version: of the parameters after it."""
        request = scheduler_pb2.CommitBatchRequest(
            worker=self._scheduler.worker, batch_id=batch_id, version=version, metrics=metrics
        )
        await self._scheduler.call("CommitBatch", request, retry_s=deadline_s)

    async def record_checkpoint(self, version: int, path: str, consumed: Ranges, deadline_s: float) -> None:
        """Reports that a checkpoint's manifest was renamed into place."""
        request = scheduler_pb2.RecordCheckpointRequest(
            worker=self._scheduler.worker, version=version, path=path, consumed=_ranges(consumed)
        )
        await self._scheduler.call("RecordCheckpoint", request, retry_s=deadline_s)


def _ranges(ranges: Ranges) -> list[scheduler_pb2.TicketRange]:
    return [scheduler_pb2.TicketRange(start=start, stop=stop) for start, stop in ranges]
