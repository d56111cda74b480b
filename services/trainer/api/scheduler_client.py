"""The scheduler as values, for the trainer rank that speaks for the group: one method, one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from earl.parallelism import Parallelism
from earl.rpc.access import Access
from earl.v1 import common_pb2, scheduler_pb2
from services.trainer.api.membership import PATIENCE_S, Membership

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class NextBatch:
    """plan: serialised, empty if none was ready in time. over: of the run. best: version with the best
    evaluation so far, 0 if there is none. held: versions whose checkpoints must stay."""

    plan: bytes
    over: bool
    best: int
    held: frozenset[int]


class SchedulerLink(Membership):
    """Speaks for a trainer group in one cut: batches are planned for its dp replicas."""

    def __init__(
        self, address: str, access: Access, *, name: str, incarnation: int, parallelism: Parallelism
    ) -> None:
        super().__init__(
            address,
            access,
            worker=common_pb2.Worker(name=name, incarnation=incarnation, stage=common_pb2.STAGE_TRAINER),
            parallelism=parallelism,
        )

    async def reconcile(self, version: int, next_batch_id: int, consumed: Ranges) -> int:
        """The ledger is brought to what these parameters were trained on; tickets rolled back."""
        request = scheduler_pb2.ReconcileRequest(
            worker=self.worker, version=version, next_batch_id=next_batch_id, consumed=_ranges(consumed)
        )
        return (await self._call("Reconcile", request, PATIENCE_S)).rolled_back

    async def next_batch(self, wait_s: float) -> NextBatch:
        request = scheduler_pb2.NextBatchRequest(worker=self.worker, ranks=self.parallelism.dp, wait_s=wait_s)
        answer = await self._call("NextBatch", request, wait_s + PATIENCE_S)
        plan = answer.plan.SerializeToString() if answer.HasField("plan") else b""
        return NextBatch(plan, answer.stop, answer.best_version, frozenset(answer.keep_versions))

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


def _ranges(ranges: Ranges) -> list[scheduler_pb2.TicketRange]:
    return [scheduler_pb2.TicketRange(start=start, stop=stop) for start, stop in ranges]
