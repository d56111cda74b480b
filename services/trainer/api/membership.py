"""Membership in a run: joining, heartbeats, and calls that outlive a scheduler's restart.

Promise: a scheduler that is away is waited for up to PATIENCE_S a call and then raised as
ServiceUnavailable; one that no longer knows this member is joined again, once a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from earl.errors import UnknownWorker
from earl.parallelism import Parallelism
from earl.rpc.access import Access
from earl.rpc.client import Client
from earl.v1 import common_pb2, scheduler_pb2
from earl.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.trainer.ranks.activity import Span, Transfer

PATIENCE_S = 30.0
# A member may be silent for three times the time between its heartbeats, of which the scheduler says three
# quarters at least.
LONGEST = 4.0


@dataclass(frozen=True, slots=True)
class Joined:
    """lease_s: of the membership. version: published last, as far as the scheduler knows, and its keys."""

    lease_s: float
    version: int
    weight_keys: tuple[str, ...]


def encode_parallelism(cut: Parallelism) -> common_pb2.Parallelism:
    return common_pb2.Parallelism(**cut.as_dict())


class Membership:
    """One process's membership in the run, and its calls as a member."""

    def __init__(
        self, address: str, access: Access, *, worker: common_pb2.Worker, parallelism: Parallelism
    ) -> None:
        self._client = Client(address, SchedulerServiceStub, token=access.token, tls=access.tls)
        self.worker = worker
        # As the member is cut now, and the epoch of the switch that cut it so: with every heartbeat.
        self.parallelism, self.epoch = parallelism, 0
        # For how long a member may be silent before it is lost: as was told at the join, and with heartbeats
        # where the fleet has grown since.
        self.silence_s = 0.0
        # Heartbeats and calls may both find out that the scheduler forgot this member: join once.
        self._joining = asyncio.Lock()
        self._joins = 0

    async def join(self, address: str) -> Joined:
        """address: host:port of the member's own server."""
        self.worker.address = address
        return await self._join()

    async def _join(self) -> Joined:
        cut = self.parallelism
        request = scheduler_pb2.JoinRequest(
            worker=self.worker, capacity=cut.devices, parallelism=encode_parallelism(cut)
        )
        answer = await self._client.call("Join", request, deadline_s=PATIENCE_S)
        self._joins += 1
        self.silence_s = answer.lease_s
        return Joined(answer.lease_s, answer.version, tuple(answer.weight_keys))

    async def heartbeat(
        self, version: int, gauges: Mapping[str, float], spans: Sequence[Span], transfers: Sequence[Transfer]
    ) -> bool:
        """Whether the run is over."""
        request = scheduler_pb2.HeartbeatRequest(
            worker=self.worker,
            running=self.parallelism.devices,
            version=version,
            gauges=gauges,
            parallelism=encode_parallelism(self.parallelism),
            epoch=self.epoch,
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
        answer = await self._call("Heartbeat", request, PATIENCE_S)
        self.silence_s = max(self.silence_s, LONGEST * answer.next_s)
        return answer.stop

    def recut(self, parallelism: Parallelism, epoch: int) -> None:
        """From now on reported so; on the loop that the calls are made on."""
        self.parallelism, self.epoch = parallelism, epoch

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
