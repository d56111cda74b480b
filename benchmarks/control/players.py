"""A process of simulated rollout workers: they lease, hold, renew, report and heartbeat; some die.

    lease credit tickets ─► hold them ─► report them in one call ─► (idle) ─► lease ...
                             ├─ every third of a lease: renew
                             └─ dies: forgets them, comes back under its name, or another one comes
    sometimes an answer counts as lost: the report is sent again, and must be answered as before. The one
    exception is a ticket that is closed by then: trained and in a checkpoint, or evaluated (see measure.py)

The clock of each worker is its own: a cycle begins period_s after the one before, or at once if that took
longer, so that a slow scheduler is asked no less.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import grpc

from benchmarks.control import wire
from benchmarks.dispatch.lines import answer, commands, main
from benchmarks.gateway.player import quantile
from earl.rpc import options
from earl.v1 import common_pb2, scheduler_pb2

SERVICE = "/earl.v1.SchedulerService/"
RPC_S = 60.0
LEASE_WAIT_S = 2.0
CHANNELS = 2
METHODS = ("Join", "Heartbeat", "LeaseTickets", "RenewLeases", "CompleteTickets")


class WorkerConnections:
    """Calls of raw bytes, and how long each took. Latencies in seconds, by method.

    Thousands of workers share these connections. One earl.scheduler_client.SchedulerClient each would be as
    many connections, and would encode every request anew: on one machine, time that the scheduler lacks.
    """

    def __init__(self, address: str, channels: int) -> None:
        self._channels = [grpc.aio.insecure_channel(address, options=options.CLIENT) for _ in range(channels)]
        self._calls = [
            {name: channel.unary_unary(SERVICE + name) for name in METHODS} for channel in self._channels
        ]
        self.latencies: dict[str, list[float]] = {name: [] for name in METHODS}

    async def call(self, index: int, method: str, request: bytes) -> bytes:
        """Sends a request over the connection of the worker with this index; returns the answer's bytes."""
        began = time.perf_counter()
        answered: bytes = await self._calls[index % len(self._calls)][method](request, timeout=RPC_S)
        self.latencies[method].append(time.perf_counter() - began)
        return answered

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


class Players:
    """Workers `first` to first + count - 1 of one scheduler."""

    def __init__(self, role: dict[str, Any]) -> None:
        self._connections = WorkerConnections(role["address"], CHANNELS)
        self._first, self._count, self._credit = role["first"], role["count"], role["credit"]
        self._heartbeat_s, self._renew_s = role["heartbeat_s"], role["renew_s"]
        self._choices = random.Random(role["first"])
        self._results = wire.Results(role["first"])
        # The newest version that any ticket asked for: what the workers' engines hold.
        self._version = 0
        self._held: dict[int, list[wire.Ref]] = {}
        self._alive: dict[int, tuple[str, int]] = {}
        self._period_s = self._hold_s = self._kill = self._repeat = 0.0
        self._counts: Counter[str] = Counter()
        self._evaluations: set[int] = set()
        # Items of repeated reports whose second answer differed from the first; see `stop`.
        self._differing: list[dict[str, Any]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()

    async def start(self) -> dict[str, Any]:
        """Joins all workers and starts their heartbeats."""
        for index in range(self._count):
            await self._join(index, f"rollout-{self._first + index}", 1)
            self._tasks.append(asyncio.create_task(self._heartbeats(index)))
        return {}

    async def play(self, period_s: float, hold_s: float, kill: float, repeat: float) -> dict[str, Any]:
        """Sets the cycle to period_s, of which tickets are held for hold_s.

        kill: probability that a worker dies in a cycle; repeat: of a report that its answer counts as lost.
        """
        self._period_s, self._hold_s, self._kill, self._repeat = period_s, hold_s, kill, repeat
        if not self._held:
            self._held = {index: [] for index in range(self._count)}
            self._tasks += [asyncio.create_task(self._cycles(index)) for index in range(self._count)]
            self._tasks.append(asyncio.create_task(self._renewals()))
        return {}

    async def latencies(self) -> dict[str, Any]:
        """Latencies since the last call, in milliseconds by method, and counts since the start."""
        figures = {}
        for name, seconds in self._connections.latencies.items():
            seconds.sort()
            if seconds:
                figures[name] = {
                    "calls": len(seconds),
                    "p50_ms": quantile(seconds, 0.5) * 1e3,
                    "p99_ms": quantile(seconds, 0.99) * 1e3,
                    "max_ms": seconds[-1] * 1e3,
                }
            seconds.clear()
        return {"rpcs": figures, "counts": dict(self._counts)}

    async def stop(self) -> dict[str, Any]:
        """Reports what is held, leases nothing more, and returns what was counted.

        otherwise: each ticket whose repeated report was answered otherwise, with the verdict, the time of
        that answer in seconds of this machine's monotonic clock, and whether it was an evaluation's.
        """
        self._over.set()
        for task in self._tasks:
            if task.done():
                task.result()  # a worker that failed must not be taken for one that ended
        cycles = self._tasks[self._count : 2 * self._count]
        await asyncio.wait_for(asyncio.gather(*cycles), RPC_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connections.close()
        return {"counts": dict(self._counts), "otherwise": self._differing}

    async def _join(self, index: int, name: str, incarnation: int) -> None:
        self._alive[index] = name, incarnation
        request = scheduler_pb2.JoinRequest(
            capacity=self._credit, parallelism=common_pb2.Parallelism(dp=1, tp=1, cp=1, pp=1)
        )
        await self._connections.call(index, "Join", self._worker(index) + request.SerializeToString())

    async def _call(self, index: int, method: str, request: bytes) -> bytes:
        """Calls as a rollout worker does, which joins again once given up; b"" for an ended incarnation."""
        identity = self._alive[index]
        try:
            return await self._connections.call(index, method, request)
        except grpc.aio.AioRpcError as error:
            if self._alive[index] != identity:
                return b""
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
        self._counts["rejoined"] += 1
        await self._join(index, *identity)
        return await self._connections.call(index, method, request)

    def _worker(self, index: int) -> bytes:
        return wire.worker(*self._alive[index], common_pb2.STAGE_ROLLOUT)

    async def _heartbeats(self, index: int) -> None:
        await asyncio.sleep(self._heartbeat_s * index / self._count)
        due_s, next_s = time.monotonic(), self._heartbeat_s
        identity, beat = self._alive[index], wire.heartbeat(self._worker(index))
        while True:
            if self._alive[index] != identity:
                identity, beat = self._alive[index], wire.heartbeat(self._worker(index))
            request = beat + wire.state(len(self._held.get(index, ())), self._version)
            if self._alive[index] == identity:
                answered = await self._call(index, "Heartbeat", request)
                next_s = scheduler_pb2.HeartbeatResponse.FromString(answered).next_s or self._heartbeat_s
            due_s = max(due_s + next_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())

    async def _renewals(self) -> None:
        """Renews every worker's leases in turn, each every renew_s."""
        while True:
            for index in range(self._count):
                if held := self._held[index]:
                    answered = await self._call(
                        index, "RenewLeases", wire.renewals(self._worker(index), held)
                    )
                    self._counts["renewals_lost"] += bool(answered)
                await asyncio.sleep(self._renew_s / self._count)

    async def _cycles(self, index: int) -> None:
        await asyncio.sleep(self._period_s * index / self._count)
        due_s, newest_fence = time.monotonic(), 0
        while not self._over.is_set():
            request = wire.lease(self._worker(index), self._credit, LEASE_WAIT_S, newest_fence)
            answered = await self._call(index, "LeaseTickets", request)
            tickets = scheduler_pb2.LeaseTicketsResponse.FromString(answered).tickets
            newest_fence = max([newest_fence, *(ticket.fence for ticket in tickets)])
            self._held[index] = held = [
                (ticket.ticket_id, ticket.attempt, ticket.fence) for ticket in tickets
            ]
            self._counts["leased"] += len(held)
            self._counts["leases_empty"] += not held
            for ticket in tickets:
                self._version = max(self._version, ticket.min_version)
                if ticket.purpose == common_pb2.PURPOSE_EVALUATE:
                    self._evaluations.add(ticket.ticket_id)
            await asyncio.sleep(self._hold_s)
            if held and self._choices.random() < self._kill:
                await self._die(index)
            elif held:
                await self._report(index, held)
            due_s = max(due_s + self._period_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())

    async def _die(self, index: int) -> None:
        """In the middle of its leases: half of those that die come back, the others are gone for good."""
        name, incarnation = self._alive[index]
        self._counts["died_holding"] += len(self._held[index])
        self._held[index] = []
        self._counts["deaths"] += 1
        if self._counts["deaths"] % 2:
            await self._join(index, name, incarnation + 1)
        else:
            await self._join(index, f"{name}+", 1)

    async def _report(self, index: int, held: list[wire.Ref]) -> None:
        request = self._results.encode(self._worker(index), held, self._version)
        answered = await self._call(index, "CompleteTickets", request)
        self._held[index] = []
        items = scheduler_pb2.CompleteTicketsResponse.FromString(answered).items
        verdicts = Counter(item.verdict for item in items)
        self._counts["accepted"] += verdicts[scheduler_pb2.VERDICT_ACCEPTED]
        self._counts["not_accepted"] += len(held) - verdicts[scheduler_pb2.VERDICT_ACCEPTED]
        if self._choices.random() < self._repeat:
            repeated = await self._call(index, "CompleteTickets", request)
            self._counts["repeated"] += len(held)
            differing = repeated not in (b"", answered)  # nothing comes back to a worker that was replaced
            self._counts["repeated_otherwise"] += differing
            if differing:
                self._compare(items, scheduler_pb2.CompleteTicketsResponse.FromString(repeated).items)

    def _compare(
        self,
        first: Sequence[scheduler_pb2.CompleteTicketsResponse.Item],
        second: Sequence[scheduler_pb2.CompleteTicketsResponse.Item],
    ) -> None:
        """Keeps each item whose second verdict differs from its first."""
        now_s = time.monotonic()
        for item, again in zip(first, second, strict=True):
            if item.verdict != again.verdict:
                number = item.attempt.ticket_id
                self._differing.append(
                    {
                        "ticket": number,
                        "verdict": scheduler_pb2.Verdict.Name(again.verdict),
                        "time_s": now_s,
                        "evaluation": number in self._evaluations,
                    }
                )


async def serve(role: dict[str, Any]) -> None:
    """Runs the command of each line."""
    players = Players(role)
    answer(ready=True)
    async for work in commands():
        do = work.pop("do")
        answer(**await getattr(players, do)(**work))


if __name__ == "__main__":
    main({"players": serve})
