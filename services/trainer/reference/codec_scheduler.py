"""The scheduler's dock as values, for the rank that speaks for the stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from earl.parallelism import Parallelism
from earl.rpc.access import Access
from earl.v1 import common_pb2, scheduler_pb2
from services.trainer.api.membership import PATIENCE_S, Membership


@dataclass(frozen=True, slots=True)
class Item:
    """One trajectory whose reference log-probs are wanted; `key` is of its columns."""

    ticket_id: int
    attempt: int
    key: str
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Column:
    """Where log-probs lie: from element `offset` on of what these registry keys hold together."""

    keys: tuple[str, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Lease:
    """ranks[r]: for replica r."""

    fence: int
    ranks: tuple[tuple[Item, ...], ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """lease: serialised, empty if nothing was wanted in time, or nothing that fits. over: leave.

    waiting_tokens: of what is wanted beside.
    """

    lease: bytes
    waiting_tokens: int
    over: bool


class ReferenceLink(Membership):
    """Speaks for a stage of dp replicas, each of tp ranks."""

    def __init__(
        self, address: str, access: Access, *, name: str, incarnation: int, dp: int, tp: int
    ) -> None:
        super().__init__(
            address,
            access,
            worker=common_pb2.Worker(name=name, incarnation=incarnation, stage=common_pb2.STAGE_REFERENCE),
            parallelism=Parallelism(dp, tp),
        )

    async def lease(self, credit_tokens: int, wait_s: float) -> Offer:
        """At most credit_tokens of what is wanted, waited for up to wait_s."""
        request = scheduler_pb2.LeaseReferenceRequest(
            worker=self.worker, ranks=self.parallelism.dp, credit_tokens=max(0, credit_tokens), wait_s=wait_s
        )
        answer = await self._call("LeaseReference", request, wait_s + PATIENCE_S)
        data = answer.SerializeToString() if answer.ranks else b""
        return Offer(data, answer.waiting_tokens, answer.stop)

    async def complete(self, fence: int, results: Mapping[Item, Column], lost: Sequence[Item]) -> int:
        """Where the results lie, and whose columns cannot be read any more; the number refused."""
        request = scheduler_pb2.CompleteReferenceRequest(worker=self.worker, fence=fence)
        for item, column in results.items():
            request.results.add(
                ticket_id=item.ticket_id,
                attempt=item.attempt,
                reference_keys=column.keys,
                reference_offset=column.offset,
            )
        for item in lost:
            request.lost.add(
                ticket_id=item.ticket_id,
                attempt=item.attempt,
                descriptor_key=item.key,
                total_tokens=item.total_tokens,
            )
        return (await self._call("CompleteReference", request, PATIENCE_S)).refused


def decode_lease(data: bytes) -> Lease:
    """The lease that `ReferenceLink.lease` gave, on every rank."""
    message = scheduler_pb2.LeaseReferenceResponse.FromString(data)
    ranks = tuple(
        tuple(
            Item(item.ticket_id, item.attempt, item.descriptor_key, item.total_tokens) for item in rank.items
        )
        for rank in message.ranks
    )
    return Lease(message.fence, ranks)
