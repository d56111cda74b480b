"""The processes of an exchange between hosts, started and driven: a process for each host, one controller.

    prepare (rows produced and published) ─► run ─► gate opens ─► every host has what it wants ─► check

Where the hosts are is said by their places: on this machine behind simulated cards (`caps`), or in namespaces
behind links that the kernel limits (`wire`).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.children import REPORT
from benchmarks.dispatch.hosts import CONTROLLER_HOST, Plan
from benchmarks.role import ANSWER_S, RoleProcess
from earl.bus import EmbeddedValkey
from earl.errors import ChecksumMismatch

MODULE = "benchmarks.dispatch.hosts"
WAYS = ("direct", "central")


@dataclass(frozen=True, slots=True)
class HostPlace:
    """A place where a host's process runs. enter: what its command begins with. role: fields of its role.

    arenas: a directory there, on a tmpfs.
    """

    arenas: str
    enter: Sequence[str] = ()
    role: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExchangeRound:
    """The time of a round. cores_busy: of all cores' time, what any process used meanwhile."""

    seconds: float
    cores_busy: float


class Fleet:
    """Running processes, one for each host."""

    def __init__(self, hosts: Sequence[RoleProcess], gate: int) -> None:
        self.hosts = hosts
        self._gate = gate
        self._numbers = 0

    @classmethod
    async def start(cls, stack: AsyncExitStack, places: Sequence[HostPlace], rows: int) -> Fleet:
        """Starts a controller and the hosts, each with at most `rows` rows; `stack` ends them."""
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-")))
        valkey = EmbeddedValkey()
        stack.push_async_callback(valkey.stop)
        url = await valkey.start(directory / "valkey")
        gate_in, gate = os.pipe()
        stack.callback(os.close, gate_in)
        stack.callback(os.close, gate)
        middle = places[CONTROLLER_HOST]
        controller, opened = await RoleProcess.start(
            MODULE, enter=middle.enter, role="controller", **middle.role
        )
        stack.push_async_callback(controller.stop)

        async def start(rank: int, place: HostPlace) -> RoleProcess:
            made, _ = await RoleProcess.start(
                MODULE, pass_fds=[gate_in], enter=place.enter, role="host", rank=rank, gate=gate_in,
                redis=url, arenas=place.arenas, directory=str(directory), known={}, rows=rows,
                controller=opened["address"], **place.role,
            )  # fmt: skip
            stack.push_async_callback(made.stop)
            return made

        return cls([await start(rank, place) for rank, place in enumerate(places)], gate)

    async def exchange(
        self, plan: Plan, way: str, begin: Callable[[], None] = lambda: None, answer_s: float = ANSWER_S
    ) -> ExchangeRound:
        """Runs one round of the first hosts of the fleet; its time is from the gate to the last host.

        begin: called right before the gate opens. Raises ChecksumMismatch for wrong bytes, DeadlineExceeded
        for a host that takes longer than answer_s.
        """
        self._numbers += 1
        fleet = self.hosts[: plan.hosts]
        work = {"hosts": plan.hosts, "rows": plan.rows, "number": self._numbers, "way": way}
        await asyncio.gather(*(role.ask(do="prepare", **work) for role in fleet))
        await asyncio.gather(*(role.ask(do="run", **work) for role in fleet))
        begin()
        clock, opened_ns = processor_clock(), time.monotonic_ns()
        os.write(self._gate, bytes(plan.hosts))
        answers = await asyncio.gather(*(role.answer(answer_s) for role in fleet))
        used = busy_since(clock)
        checked = await asyncio.gather(*(role.ask(do="check", **work) for role in fleet))
        if not all(answer["right"] for answer in checked):
            raise ChecksumMismatch(f"{way}: a host's buffer is not what the others hold", REPORT)
        return ExchangeRound((max(answer["at_ns"] for answer in answers) - opened_ns) / 1e9, used)


def processor_clock() -> tuple[int, int]:
    """Ticks that this machine's cores were busy, and all ticks."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def busy_since(before: tuple[int, int]) -> float:
    """Fraction of all cores' time since `before` that any process used."""
    busy, ticks = (now - then for now, then in zip(processor_clock(), before, strict=True))
    return busy / max(1, ticks)
