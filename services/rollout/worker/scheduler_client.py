"""The scheduler as values: one method, one call.

Promise: a scheduler that is away is waited for up to patience_s a call and then raised as
ServiceUnavailable; one that no longer knows this worker is joined again, once a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from earl.errors import UnknownWorker
from earl.parallelism import Parallelism
from earl.parallelism_codec import encode_parallelism
from earl.rpc.access import Access
from earl.rpc.client import Client
from earl.v1 import common_pb2, scheduler_pb2
from earl.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.rollout.engines.contract.engine import TransferTotals
from services.rollout.episode.agent import EpisodeOutcome, EpisodeTicket
from services.rollout.episode.busy_spans import BusySpan
from services.rollout.worker.ticket_codec import decode_ticket, encode_ref, encode_result


@dataclass(frozen=True, slots=True)
class Membership:
    """lease_s: of the membership. version, weight_keys: newest published weights, 0 if none."""

    lease_s: float
    version: int
    weight_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A finished attempt. descriptor_key: "" if its columns are not published."""

    ticket: EpisodeTicket
    outcome: EpisodeOutcome
    descriptor_key: str = ""


class SchedulerLink:
    """Speaks for one worker. capacity: episodes at once. patience_s: how long a scheduler that cannot be
    reached (restarting, overloaded) is tried. on_rejoin: called after the scheduler had given this worker up
    and took it back."""

    def __init__(
        self,
        address: str,
        access: Access,
        *,
        name: str,
        incarnation: int,
        capacity: int,
        parallelism: Parallelism,
        patience_s: float,
        on_rejoin: Callable[[], None] = lambda: None,
    ) -> None:
        self._patience_s = patience_s
        self._joining = asyncio.Lock()
        self._joins = 0
        self._on_rejoin = on_rejoin
        self._client = Client(address, SchedulerServiceStub, token=access.token, tls=access.tls)
        self.worker = common_pb2.Worker(name=name, incarnation=incarnation, stage=common_pb2.STAGE_ROLLOUT)
        self._request = scheduler_pb2.JoinRequest(
            capacity=capacity, parallelism=encode_parallelism(parallelism)
        )

    async def join(self, address: str) -> Membership:
        """address: host:port of this worker's own server."""
        self.worker.address = address
        self._request.worker.CopyFrom(self.worker)
        answer = await self._client.call("Join", self._request, deadline_s=self._patience_s)
        self._joins += 1
        return Membership(answer.lease_s, answer.version, tuple(answer.weight_keys))

    async def lease(self, credit: int, wait_s: float) -> tuple[list[EpisodeTicket], bool]:
        """Up to `credit` tickets, and whether the run is ending."""
        request = scheduler_pb2.LeaseTicketsRequest(worker=self.worker, credit=credit, wait_s=wait_s)
        answer = await self._call("LeaseTickets", request, wait_s + self._patience_s)
        return [decode_ticket(ticket) for ticket in answer.tickets], answer.stop

    async def renew(self, tickets: Sequence[EpisodeTicket]) -> list[tuple[int, int, int]]:
        """(ticket_id, attempt, fence) of those that are no longer this worker's."""
        request = scheduler_pb2.RenewLeasesRequest(
            worker=self.worker, attempts=[encode_ref(ticket) for ticket in tickets]
        )
        answer = await self._call("RenewLeases", request, self._patience_s)
        return [(ref.ticket_id, ref.attempt, ref.fence) for ref in answer.lost]

    async def complete(self, reports: Sequence[Report]) -> list[tuple[EpisodeTicket, str]]:
        """Reports finished attempts in one call.

        Those not accepted (refused, or to be tried again) come back with the reason: nobody will read
        their columns.
        """
        request = scheduler_pb2.CompleteTicketsRequest(
            worker=self.worker,
            results=[encode_result(one.ticket, one.outcome, one.descriptor_key) for one in reports],
        )
        answer = await self._call("CompleteTickets", request, self._patience_s)
        tickets = {(one.ticket.ticket_id, one.ticket.attempt): one.ticket for one in reports}
        return [
            (tickets[item.attempt.ticket_id, item.attempt.attempt], item.reason)
            for item in answer.items
            if item.verdict != scheduler_pb2.VERDICT_ACCEPTED
        ]

    async def heartbeat(
        self,
        *,
        running: int,
        version: int,
        parallelism: Parallelism,
        epoch: int,
        gauges: Mapping[str, float],
        spans: Sequence[BusySpan],
        transfers: Sequence[TransferTotals],
    ) -> tuple[bool, float]:
        """Whether to stop, and in how many seconds the next one is wanted.

        parallelism, epoch: how the devices are cut now, and by which switch.
        """
        # A scheduler that this worker joins again is to know it, too.
        self._request.parallelism.CopyFrom(encode_parallelism(parallelism))
        request = scheduler_pb2.HeartbeatRequest(
            worker=self.worker,
            running=running,
            version=version,
            gauges=gauges,
            parallelism=self._request.parallelism,
            epoch=epoch,
        )
        for span in spans:
            request.spans.add(what=span.what, start_ns=span.start_ns, end_ns=span.end_ns)
        for one in transfers:
            request.transfers.add(
                path=one.path,
                size_bytes=one.size_bytes,
                seconds=one.seconds,
                transfers=one.transfers,
                retries=one.retries,
            )
        answer = await self._call("Heartbeat", request, self._patience_s)
        return answer.stop, answer.next_s

    async def leave(self, reason: str, deadline_s: float) -> None:
        """What is still held goes back at once. Raises what the call does."""
        request = scheduler_pb2.LeaveRequest(worker=self.worker, reason=reason)
        await self._client.call("Leave", request, deadline_s=deadline_s)

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, method: str, request, deadline_s: float):
        joins = self._joins
        try:
            return await self._client.call(method, request, deadline_s=deadline_s)
        except UnknownWorker:
            await self._join_again(joins)
            return await self._client.call(method, request, deadline_s=deadline_s)

    async def _join_again(self, joins: int) -> None:
        """The scheduler gave this worker up, and with it its leases and what lies in its arena.

        Several calls may find that out together: one of them joins.
        """
        async with self._joining:
            if self._joins == joins:
                await self._client.call("Join", self._request, deadline_s=self._patience_s)
                self._joins += 1
                self._on_rejoin()
