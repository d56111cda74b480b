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


class Wires:
    """Calls of raw bytes, and how long each took. Latencies in seconds, by method."""

    def __init__(self, address: str, channels: int) -> None:
        self._channels = [grpc.aio.insecure_channel(address, options=options.CLIENT) for _ in range(channels)]
        self._calls = [
            {name: channel.unary_unary(SERVICE + name) for name in METHODS} for channel in self._channels
        ]
        self.latencies: dict[str, list[float]] = {name: [] for name in METHODS}

    async def call(self, at: int, method: str, request: bytes) -> bytes:
        """at: which worker's connection."""
        began = time.perf_counter()
        said: bytes = await self._calls[at % len(self._calls)][method](request, timeout=RPC_S)
        self.latencies[method].append(time.perf_counter() - began)
        return said

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


class Players:
    """Workers `first` to first + count - 1 of one scheduler."""

    def __init__(self, said: dict[str, Any]) -> None:
        self._wires = Wires(said["address"], CHANNELS)
        self._first, self._count, self._credit = said["first"], said["count"], said["credit"]
        self._heartbeat_s, self._renew_s = said["heartbeat_s"], said["renew_s"]
        self._choices = random.Random(said["first"])
        self._results = wire.Results(said["first"])
        # The newest version that any ticket asked for: what the workers' engines hold.
        self._version = 0
        self._held: dict[int, list[wire.Ref]] = {}
        self._alive: dict[int, tuple[str, int]] = {}
        self._period_s = self._hold_s = self._kill = self._repeat = 0.0
        self._counts: Counter[str] = Counter()
        self._evaluations: set[int] = set()
        # Of items of repeated reports that were answered otherwise: see `stop`.
        self._otherwise: list[dict[str, Any]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()

    async def start(self) -> dict[str, Any]:
        """All join, and heartbeat from now on."""
        for at in range(self._count):
            await self._join(at, f"rollout-{self._first + at}", 1)
            self._tasks.append(asyncio.create_task(self._heartbeats(at)))
        return {}

    async def play(self, period_s: float, hold_s: float, kill: float, repeat: float) -> dict[str, Any]:
        """From now on a cycle takes period_s, and tickets are held for hold_s of it.

        kill: probability that a worker dies in a cycle; repeat: of a report that its answer counts as lost.
        """
        self._period_s, self._hold_s, self._kill, self._repeat = period_s, hold_s, kill, repeat
        if not self._held:
            self._held = {at: [] for at in range(self._count)}
            self._tasks += [asyncio.create_task(self._cycles(at)) for at in range(self._count)]
            self._tasks.append(asyncio.create_task(self._renewals()))
        return {}

    async def latencies(self) -> dict[str, Any]:
        """Since the last call, in milliseconds by method; and what was counted since the beginning."""
        figures = {}
        for name, found in self._wires.latencies.items():
            found.sort()
            if found:
                figures[name] = {
                    "calls": len(found),
                    "p50_ms": quantile(found, 0.5) * 1e3,
                    "p99_ms": quantile(found, 0.99) * 1e3,
                    "max_ms": found[-1] * 1e3,
                }
            found.clear()
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
        await self._wires.close()
        return {"counts": dict(self._counts), "otherwise": self._otherwise}

    async def _join(self, at: int, name: str, incarnation: int) -> None:
        self._alive[at] = name, incarnation
        request = scheduler_pb2.JoinRequest(
            capacity=self._credit, parallelism=common_pb2.Parallelism(dp=1, tp=1, cp=1, pp=1)
        )
        await self._wires.call(at, "Join", self._worker(at) + request.SerializeToString())

    async def _call(self, at: int, method: str, request: bytes) -> bytes:
        """As a rollout worker does it, which joins again once given up; b"" for a life that is over."""
        lives = self._alive[at]
        try:
            return await self._wires.call(at, method, request)
        except grpc.aio.AioRpcError as error:
            if self._alive[at] != lives:
                return b""
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
        self._counts["rejoined"] += 1
        await self._join(at, *lives)
        return await self._wires.call(at, method, request)

    def _worker(self, at: int) -> bytes:
        return wire.worker(*self._alive[at], common_pb2.STAGE_ROLLOUT)

    async def _heartbeats(self, at: int) -> None:
        await asyncio.sleep(self._heartbeat_s * at / self._count)
        due_s, next_s = time.monotonic(), self._heartbeat_s
        lives, said = self._alive[at], wire.heartbeat(self._worker(at))
        while True:
            if self._alive[at] != lives:
                lives, said = self._alive[at], wire.heartbeat(self._worker(at))
            request = said + wire.state(len(self._held.get(at, ())), self._version)
            if self._alive[at] == lives:
                answered = await self._call(at, "Heartbeat", request)
                next_s = scheduler_pb2.HeartbeatResponse.FromString(answered).next_s or self._heartbeat_s
            due_s = max(due_s + next_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())

    async def _renewals(self) -> None:
        """Every worker renews what it holds, in turn, each every renew_s."""
        while True:
            for at in range(self._count):
                if held := self._held[at]:
                    said = await self._call(at, "RenewLeases", wire.renewals(self._worker(at), held))
                    self._counts["renewals_lost"] += bool(said)
                await asyncio.sleep(self._renew_s / self._count)

    async def _cycles(self, at: int) -> None:
        await asyncio.sleep(self._period_s * at / self._count)
        due_s = time.monotonic()
        while not self._over.is_set():
            said = await self._call(
                at, "LeaseTickets", wire.lease(self._worker(at), self._credit, LEASE_WAIT_S)
            )
            tickets = scheduler_pb2.LeaseTicketsResponse.FromString(said).tickets
            self._held[at] = held = [(one.ticket_id, one.attempt, one.fence) for one in tickets]
            self._counts["leased"] += len(held)
            self._counts["leases_empty"] += not held
            for ticket in tickets:
                self._version = max(self._version, ticket.min_version)
                if ticket.purpose == common_pb2.PURPOSE_EVALUATE:
                    self._evaluations.add(ticket.ticket_id)
            await asyncio.sleep(self._hold_s)
            if held and self._choices.random() < self._kill:
                await self._die(at)
            elif held:
                await self._report(at, held)
            due_s = max(due_s + self._period_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())

    async def _die(self, at: int) -> None:
        """In the middle of its leases: half of those that die come back, the others are gone for good."""
        name, incarnation = self._alive[at]
        self._counts["died_holding"] += len(self._held[at])
        self._held[at] = []
        self._counts["deaths"] += 1
        if self._counts["deaths"] % 2:
            await self._join(at, name, incarnation + 1)
        else:
            await self._join(at, f"{name}+", 1)

    async def _report(self, at: int, held: list[wire.Ref]) -> None:
        request = self._results.encode(self._worker(at), held, self._version)
        answered = await self._call(at, "CompleteTickets", request)
        self._held[at] = []
        items = scheduler_pb2.CompleteTicketsResponse.FromString(answered).items
        verdicts = Counter(item.verdict for item in items)
        self._counts["accepted"] += verdicts[scheduler_pb2.VERDICT_ACCEPTED]
        self._counts["not_accepted"] += len(held) - verdicts[scheduler_pb2.VERDICT_ACCEPTED]
        if self._choices.random() < self._repeat:
            repeated = await self._call(at, "CompleteTickets", request)
            self._counts["repeated"] += len(held)
            otherwise = repeated not in (b"", answered)  # nothing comes back to a worker that was replaced
            self._counts["repeated_otherwise"] += otherwise
            if otherwise:
                self._compare(items, scheduler_pb2.CompleteTicketsResponse.FromString(repeated).items)

    def _compare(
        self,
        first: Sequence[scheduler_pb2.CompleteTicketsResponse.Item],
        second: Sequence[scheduler_pb2.CompleteTicketsResponse.Item],
    ) -> None:
        """Keeps each item whose second verdict is another one."""
        now_s = time.monotonic()
        for item, again in zip(first, second, strict=True):
            if item.verdict != again.verdict:
                number = item.attempt.ticket_id
                self._otherwise.append(
                    {
                        "ticket": number,
                        "verdict": scheduler_pb2.Verdict.Name(again.verdict),
                        "time_s": now_s,
                        "evaluation": number in self._evaluations,
                    }
                )


async def serve(said: dict[str, Any]) -> None:
    """Do what each line says."""
    players = Players(said)
    answer(ready=True)
    async for work in commands():
        do = work.pop("do")
        answer(**await getattr(players, do)(**work))


if __name__ == "__main__":
    main({"players": serve})
