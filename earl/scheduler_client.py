"""A worker's membership in a run: what workers of every stage ask of the scheduler alike.

    join ─► heartbeat · calls of the stage ─► leave
                └─ UnknownWorker ─► join again, once for all calls refused together ─► the call again

Promise: a scheduler that cannot be reached is tried for retry_s a call, or for outage_s once it was joined;
then ServiceUnavailable is raised. One that gave this worker up, or has started again and lost it, is joined
again, at most once a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from earl.errors import UnknownWorker
from earl.message_fields import fill, from_message
from earl.parallelism import Parallelism
from earl.parallelism_codec import encode_parallelism
from earl.rpc.access import Access
from earl.rpc.client import Client
from earl.switch_codec import encode_ended
from earl.switch_figures import StageSwitch
from earl.v1 import common_pb2, scheduler_pb2
from earl.v1.scheduler_pb2_grpc import SchedulerServiceStub
from earl.worker_report import BusySpan, LiveSequence, SequenceMove, TransferTotals, WorkerDevice

# How long a scheduler that cannot be reached (restarting, overloaded) is tried, a call.
RETRY_S = 30.0
# A worker counts as lost after three times the time between its heartbeats, of which the scheduler allows
# three quarters at least.
_HEARTBEATS_UNTIL_LOST = 4.0
_HEARTBEATS_IN_MEMBERSHIP = 3.0


@dataclass(frozen=True, slots=True)
class JoinReply:
    """The reply to joining a run.

    lease_s: for how long the scheduler keeps a worker without a heartbeat. version, weight_keys: the newest
    weights that it knows of and their descriptors, 0 and none before the first were published.
    """

    lease_s: float
    version: int
    weight_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """stop: the run has ended. next_s: seconds until the next heartbeat is due. moves: of the sequences that
    were reported. refused_context_tokens: no division of the run's devices holds so many; 0: all wait."""

    stop: bool
    next_s: float
    moves: tuple[SequenceMove, ...] = ()
    refused_context_tokens: int = 0


class SchedulerClient:
    """One worker's connection to the scheduler; a stage adds its own calls by way of `call`.

    worker: as the scheduler knows it. parallelism, epoch: of its devices now, and of the switch that made it
    so; devices: of each of its ranks, none until they are known. All are reported with every heartbeat and
    when it joins. heartbeat_s: seconds between its heartbeats
    where the scheduler sets none, at most a third of its membership. lost_after_s: how long any worker of the
    run may be without a heartbeat before it counts as lost; it grows with the fleet. retry_s: how long a call
    tries a scheduler that cannot be reached now.
    """

    def __init__(
        self,
        address: str,
        access: Access,
        *,
        stage: Literal["rollout", "trainer", "reference", "teacher", "reward_model"],
        name: str,
        incarnation: int,
        capacity: int,
        parallelism: Parallelism,
        heartbeat_s: float,
        retry_s: float = RETRY_S,
        outage_s: float = 0.0,
        on_rejoin: Callable[[], None] = lambda: None,
    ) -> None:
        """capacity: episodes that the worker plays, or ranks that it has. heartbeat_s: of the configuration.
        retry_s: how long a scheduler that cannot be reached is tried; outage_s: the same once it was joined,
        if that is longer: a network may be cut off for a while. on_rejoin: called after a scheduler that had
        given the worker up took it back, and with that counts everything as lost that it held.

        Raises as earl.rpc.client.Client. The connection belongs to the event loop that runs now.
        """
        self._client = Client(
            address, SchedulerServiceStub, token=access.token, tls=access.tls, detects_outages=True
        )
        self.worker = common_pb2.Worker(name=name, incarnation=incarnation, stage=f"STAGE_{stage.upper()}")
        self.parallelism, self.epoch = parallelism, 0
        self.devices: Sequence[WorkerDevice] = ()
        self.heartbeat_s = self._heartbeat_s = heartbeat_s
        self.lost_after_s = 0.0
        self._capacity = capacity
        self.retry_s, self._outage_s = retry_s, outage_s
        self._on_rejoin = on_rejoin
        self._joining = asyncio.Lock()
        self._joins = 0
        # Switches that no heartbeat has reported yet.
        self._switches: list[StageSwitch[Parallelism]] = []

    async def join(self, address: str) -> JoinReply:
        """Becomes a worker of the run. address: host:port of the worker's own server."""
        self.worker.address = address
        return await self._join()

    async def heartbeat(
        self,
        *,
        running: int,
        version: int,
        gauges: Mapping[str, float],
        spans: Iterable[BusySpan],
        transfers: Iterable[TransferTotals],
        sequences: Iterable[LiveSequence] = (),
    ) -> HeartbeatReply:
        """Reports what the worker does; the next heartbeat is due after the reply's next_s.

        running: of its capacity. version: of the weights that it has. spans: since the last heartbeat.
        transfers: totals since the worker started. sequences: those that may move between its engines.
        """
        request = scheduler_pb2.HeartbeatRequest(
            worker=self.worker,
            running=running,
            version=version,
            gauges=gauges,
            parallelism=encode_parallelism(self.parallelism),
            epoch=self.epoch,
        )
        for span in spans:
            fill(request.spans.add(), span)
        for total in transfers:
            fill(request.transfers.add(), total)
        for device in self.devices:
            fill(request.devices.add(), device)
        for sequence in sequences:
            fill(request.sequences.add(), sequence)
        switches = [*self._switches]
        request.switches.extend(map(encode_ended, switches))
        answer = await self.call("Heartbeat", request)
        del self._switches[: len(switches)]
        self.lost_after_s = max(self.lost_after_s, _HEARTBEATS_UNTIL_LOST * answer.next_s)
        moves = tuple(from_message(SequenceMove, move) for move in answer.moves)
        next_s, refused_tokens = answer.next_s or self.heartbeat_s, answer.refused_context_tokens
        return HeartbeatReply(answer.stop, next_s, moves, refused_tokens)

    def set_parallelism(self, parallelism: Parallelism, epoch: int) -> None:
        """Reports this parallelism from now on; on the loop that calls are made on."""
        self.parallelism, self.epoch = parallelism, epoch

    def report_switch(self, switch: StageSwitch[Parallelism]) -> None:
        """Reports with the next heartbeat a switch that nobody commanded; on the loop of the calls."""
        self._switches.append(switch)

    async def leave(self, reason: str, deadline_s: float) -> None:
        """Leaves the run: what the worker still holds goes to others at once. Raises as Client.call."""
        request = scheduler_pb2.LeaveRequest(worker=self.worker, reason=reason)
        await self._client.call("Leave", request, deadline_s=deadline_s)

    async def close(self) -> None:
        """Closes the connection; calls in flight are cancelled."""
        await self._client.close()

    async def call(
        self, method: str, request: Any, *, wait_s: float = 0.0, retry_s: float | None = None
    ) -> Any:
        """The scheduler's answer; a worker that it does not know joins again and asks once more.

        wait_s: how long the scheduler itself may wait before it answers. retry_s: instead of the client's.
        Raises as Client.call.
        """
        deadline_s = wait_s + (self.retry_s if retry_s is None else retry_s)
        joins = self._joins
        try:
            return await self._client.call(method, request, deadline_s=deadline_s)
        except UnknownWorker:
            async with self._joining:
                # Another call may have found out at the same time, and joined.
                if joins == self._joins:
                    await self._join()
                    self._on_rejoin()
            return await self._client.call(method, request, deadline_s=deadline_s)

    async def _join(self) -> JoinReply:
        request = scheduler_pb2.JoinRequest(
            worker=self.worker, capacity=self._capacity, parallelism=encode_parallelism(self.parallelism)
        )
        for device in self.devices:
            fill(request.devices.add(), device)
        answer = await self._client.call("Join", request, deadline_s=self.retry_s)
        self._joins += 1
        self.retry_s = max(self.retry_s, self._outage_s)
        self.heartbeat_s = min(self._heartbeat_s, answer.lease_s / _HEARTBEATS_IN_MEMBERSHIP)
        self.lost_after_s = answer.lease_s
        return JoinReply(answer.lease_s, answer.version, tuple(answer.weight_keys))
