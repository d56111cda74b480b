"""Starts processes of a run, here or elsewhere: what the supervisor asks of whoever starts one.

    start ─► placed (it has left the queue) ─► ready lines ─► ended, with an exit code
               a machine that is lost ends what ran there, too: `lost` tells the reason

`LocalStarter` makes a child of this process, `earl.stack.cluster` a job of a cluster's manager.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from earl.stack.priority import lower_priority

LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StartOrder:
    """A process to start: `python <arguments>`, with these variables alone, its output kept in `log`.

    held: it loads what it imports, and waits for `StartedProcess.begin`. nice: by how much its priority is
    lowered.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    log: Path
    held: bool = False
    nice: int = 0


@dataclass(frozen=True, slots=True)
class ReadyLine:
    """The addresses in the line with which a process reports that it serves; "" where it has none."""

    address: str
    metrics: str


class StartedProcess(Protocol):
    """A process that was started; `follow` and `wait` may be cancelled and called again."""

    @property
    def pid(self) -> int:
        """The process on this machine; 0 if it is elsewhere."""
        ...

    @property
    def place(self) -> str:
        """The machine that it is on, in words; "" for this one."""
        ...

    @property
    def running(self) -> bool: ...

    @property
    def lost(self) -> str:
        """The reason why its machine, not the process, ended it; "" if it did not."""
        ...

    async def placed(self) -> None:
        """Waits until it runs somewhere, or has ended. Raises ProcessFailed after the queue's bound."""
        ...

    async def follow(self, ready: Callable[[ReadyLine], None]) -> None:
        """Calls `ready` for every ready line until the process's output has ended."""
        ...

    def begin(self, environment: Mapping[str, str]) -> None:
        """Lets a held process begin, with these variables added."""
        ...

    async def wait(self) -> int:
        """Waits for its end. Returns the exit code, negative for a signal."""
        ...

    def terminate(self) -> None:
        """SIGTERM to the process alone: it drains, and ends what it started itself."""
        ...

    def signal(self, signal_number: int) -> None:
        """Signals the process and its group; nothing if it has ended."""
        ...


class Starter(Protocol):
    """Starts processes; what it raises for one that cannot be started is OSError or EarlError."""

    async def start(self, order: StartOrder) -> StartedProcess: ...


class LocalProcess:
    """A child of this process, in a session of its own."""

    place = ""
    lost = ""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def placed(self) -> None:
        return

    async def follow(self, ready: Callable[[ReadyLine], None]) -> None:
        """Looks for ready lines; the rest of standard output joins the log."""
        assert self._process.stdout is not None
        with _appended(self._log) as log:
            while True:
                try:
                    line = await self._process.stdout.readline()
                except ValueError:  # longer than LINE_BYTES: the stream dropped it
                    continue
                if not line:
                    return
                report = ready_line(line)
                if report is not None:
                    ready(report)
                    continue
                log.write(line)
                log.flush()

    def begin(self, environment: Mapping[str, str]) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(dict(environment)).encode() + b"\n")
            self._process.stdin.close()

    async def wait(self) -> int:
        return await self._process.wait()

    def terminate(self) -> None:
        if self.running:
            self._process.send_signal(signal.SIGTERM)

    def signal(self, signal_number: int) -> None:
        if self.running:
            try:
                os.killpg(self.pid, signal_number)
            except ProcessLookupError:
                return


class LocalStarter:
    """Starts children of this process."""

    async def start(self, order: StartOrder) -> LocalProcess:
        with _appended(order.log) as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *order.arguments,
                stdin=asyncio.subprocess.PIPE if order.held else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=order.environment,
                start_new_session=True,  # Ctrl-C in the terminal is the launcher's to handle
                limit=LINE_BYTES,
            )
        if order.nice:
            await lower_priority(process.pid, order.nice)
        return LocalProcess(process, order.log)


def _appended(log: Path) -> BinaryIO:
    return open(log, "ab")


def ready_line(line: bytes) -> ReadyLine | None:
    """The addresses of a ready line; None if the line is anything else."""
    if not line.startswith(b'{"ready"'):
        return None
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return ReadyLine(str(message.get("address", "")), str(message.get("metrics", "")))
