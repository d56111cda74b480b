"""The scheduler's client of a frozen model's stage: leases of sequences, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from earl.message_fields import fill, from_message
from earl.scheduler_client import SchedulerClient
from earl.v1 import scheduler_pb2


@dataclass(frozen=True, slots=True)
class ReferenceItem:
    """One trajectory whose log-probs or score are wanted; `key` is of its columns."""

    ticket_id: int
    attempt: int
    key: str
    total_tokens: int


@dataclass(frozen=True, slots=True)
class LogprobColumn:
    """The place of log-probs: from element `offset` on of what these registry keys hold together."""

    keys: tuple[str, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class SequenceScore:
    """The number that a role without a column gives to a trajectory; finite."""

    value: float


@dataclass(frozen=True, slots=True)
class ReferenceLease:
    """Trajectories to compute log-probs of. fence: of the lease; ranks[r]: for replica r."""

    fence: int
    ranks: tuple[tuple[ReferenceItem, ...], ...]


@dataclass(frozen=True, slots=True)
class LeaseOffer:
    """The scheduler's answer to a stage that asks for work.

    lease: serialised, empty if there was nothing in time, or nothing that fits. waiting_tokens: of other
    sequences that wait. run_ended: leave.
    """

    lease: bytes
    waiting_tokens: int
    run_ended: bool


class ReferenceClient:
    """Calls of the rank that speaks for a role's stage. Each raises as SchedulerClient.call."""

    def __init__(self, scheduler: SchedulerClient, role: str) -> None:
        self._scheduler, self._role = scheduler, role

    async def lease(self, credit_tokens: int, wait_s: float) -> LeaseOffer:
        """Leases trajectories of credit_tokens together at most; waits up to wait_s for some."""
        request = scheduler_pb2.LeaseReferenceRequest(
            worker=self._scheduler.worker,
            ranks=self._scheduler.parallelism.dp,
            credit_tokens=max(0, credit_tokens),
            wait_s=wait_s,
            role=self._role,
        )
        answer = await self._scheduler.call("LeaseReference", request, wait_s=wait_s)
        data = answer.SerializeToString() if answer.ranks else b""
        return LeaseOffer(data, answer.waiting_tokens, answer.stop)

    async def complete(
        self,
        fence: int,
        results: Mapping[ReferenceItem, LogprobColumn | SequenceScore],
        lost: Sequence[ReferenceItem],
    ) -> int:
        """Reports where log-probs lie, or scores, and which trajectories are unreadable; returns how many
        results it refused."""
        worker = self._scheduler.worker
        request = scheduler_pb2.CompleteReferenceRequest(worker=worker, fence=fence, role=self._role)
        for item, made in results.items():
            if isinstance(made, SequenceScore):
                fill(request.results.add(score=made.value), item)
            else:
                fill(request.results.add(reference_keys=made.keys, reference_offset=made.offset), item)
        for item in lost:
            fill(request.lost.add(descriptor_key=item.key), item)
        return (await self._scheduler.call("CompleteReference", request)).refused


def decode_lease(data: bytes) -> ReferenceLease:
    """The lease that `ReferenceClient.lease` gave, on every rank."""
    message = scheduler_pb2.LeaseReferenceResponse.FromString(data)
    ranks = tuple(
        tuple(from_message(ReferenceItem, item, key=item.descriptor_key) for item in rank.items)
        for rank in message.ranks
    )
    return ReferenceLease(message.fence, ranks)
