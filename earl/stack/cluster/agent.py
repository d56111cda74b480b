"""Runs one placed process: `python -m earl.stack.cluster.agent FOLDER`, which is all that its job does.

    order.json ─► child ─► placed.json, ready.json ─► ended.json
                    ▲
    begin.json, signals, the manager's SIGTERM ─┘      head gone, or another's ─► the child is ended

It adds what only its node knows: address and sockets. What the child leaves behind is ended and removed; so
it is if this process is killed, by a warden.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from earl.dispatch.memory.arena_file import remove_stale
from earl.json_fields import from_json
from earl.stack.cluster.folder import BEAT_S, Fence, lines, write
from earl.stack.cluster.managers import node_address
from earl.stack.launch_guard import LaunchGuard
from earl.stack.run_files import read_object
from earl.stack.starter import LocalProcess, LocalStarter, ReadyLine, StartOrder
from earl.stack.warden import MARK_VARIABLE, SOCKETS_VARIABLE, sweep

# Exit code of a job whose folder its node does not have.
NOT_SHARED = 78
POLL_S = 0.5
# A child that was told to end because its head is gone, or its job is cancelled, has this long.
END_S = 20.0
# Variables that are the node's or the job's, not the submitter's.
OF_NODE = (
    *("SLURM", "EARL_RAY_", "EARL_POD_", "EARL_SLOTS", "KUBERNETES_", "NVIDIA_"),
    *("CUDA_VISIBLE_DEVICES", "HOSTNAME", "TMPDIR", "ROCR_VISIBLE_DEVICES"),
)


@dataclass(frozen=True, slots=True)
class AgentOrder:
    """A process for an agent to start.

    directory: where it runs. head: the head's random name. arenas: the run's, on each node. manager: its
    name, as for `earl up --on`.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    directory: str
    log: str
    arenas: str
    head: str
    manager: str
    held: bool = False


class Agent:
    """Runs the child of one order until it has ended."""

    def __init__(self, folder: Path, order: AgentOrder, sockets: Path) -> None:
        self._folder = folder
        self._order = order
        self._sockets = sockets
        self._fence = Fence(folder.parents[1] / "head.json", order.head)
        self._fenced_at = 0.0
        self._signals = 0
        self._began = not order.held
        self._ending = asyncio.Event()
        self._address = node_address(order.manager)

    async def run(self) -> int:
        order = self._order
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._ending.set)
        process = await LocalStarter().start(
            StartOrder(order.name, order.arguments, self.environment(), Path(order.log), held=order.held)
        )
        write(self._folder / "placed.json", {"node": self._address, "pid": process.pid})
        reading = asyncio.create_task(process.follow(self._serves))
        waiting = asyncio.create_task(process.wait())
        while not waiting.done():
            self._follow_wishes(process)
            if self._ending.is_set():
                await self._end(process, waiting)
            await asyncio.wait([waiting], timeout=POLL_S)
        await asyncio.wait([reading], timeout=1.0)
        reading.cancel()
        return waiting.result()

    def environment(self) -> dict[str, str]:
        """The child's variables: those of the order, and what is this node's."""
        given = self._order.environment.items()
        return {
            **{name: value for name, value in given if not name.startswith(OF_NODE)},
            **{name: value for name, value in os.environ.items() if name.startswith(OF_NODE)},
            "EARL_BIND": f"{_host(self._address)}:0",
            "EARL_ADVERTISE": self._address,
            SOCKETS_VARIABLE: str(self._sockets),
            "VLLM_RPC_BASE_PATH": str(self._sockets),
        }

    def _serves(self, report: ReadyLine) -> None:
        write(self._folder / "ready.json", {"address": report.address, "metrics": report.metrics})

    def _follow_wishes(self, process: LocalProcess) -> None:
        """Does what the head wants, and ends the child where that is not the head any more."""
        begin = self._folder / "begin.json"
        if not self._began and begin.is_file():
            self._began = True
            process.begin(read_object(begin))
        numbers = lines(self._folder / "signals")
        for number in map(int, numbers[self._signals :]):
            if number == signal.SIGTERM:
                process.terminate()
            else:
                process.signal(number)
        self._signals = len(numbers)
        now = time.monotonic()
        if self._ending.is_set() or now - self._fenced_at < BEAT_S:
            return
        self._fenced_at = now
        if reason := self._fence.broken():
            self._note(reason)
            self._ending.set()

    async def _end(self, process: LocalProcess, waiting: asyncio.Task[int]) -> None:
        process.terminate()
        await asyncio.wait([waiting], timeout=END_S)
        process.signal(signal.SIGKILL)

    def _note(self, line: str) -> None:
        with open(self._order.log, "ab") as log:
            log.write(f"earl: {self._order.name} is ended: {line}\n".encode())


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


async def run(folder: Path, order: AgentOrder) -> int:
    """Runs an order and leaves nothing of it on this node. Returns the child's exit code."""
    sockets = Path(tempfile.mkdtemp(prefix="earl-", dir="/tmp"))
    mark = order.environment[MARK_VARIABLE]
    try:
        async with LaunchGuard(mark, (sockets,)):
            code = await Agent(folder, order, sockets).run()
            await asyncio.to_thread(sweep, mark, grace_s=0.0)
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
        remove_stale(Path(order.arenas))
    return code


def read_order(folder: Path) -> AgentOrder | None:
    """The order of a folder; None where this node does not have it."""
    value = read_object(folder / "order.json")
    return from_json(AgentOrder, value) if value else None


def main() -> int:
    folder = Path(sys.argv[1])
    order = read_order(folder)
    if order is None:
        sys.stderr.write(f"earl: error: this node has no {folder}: the run's directory is not shared\n")
        return NOT_SHARED
    if (folder / "ended.json").exists():  # it was requeued by somebody else: the head starts it anew
        return 0
    os.chdir(order.directory if Path(order.directory).is_dir() else "/")
    code = asyncio.run(run(folder, order))
    write(folder / "ended.json", {"code": code})
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
