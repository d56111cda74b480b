"""One process of the stack: its state, where it serves, its log, and the reason for its end.

Standard output carries one line that matters, `{"ready": name, "address": "host:port"}`; everything
else it prints, and all of standard error, goes to `<run dir>/logs/<name>.log`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from earl.dispatch.memory import last_words
from earl.errors import EarlError, ProcessFailed
from earl.rpc.errors import catalogue
from earl.rpc.main import AWAIT_VARIABLE
from earl.stack.plan import ProcessSpec
from earl.stack.starter import LocalStarter, ReadyLine, StartedProcess, Starter, StartOrder

TAIL_BYTES, TAIL_LINES = 16 << 10, 12
ERROR_PREFIX = "earl: error: "


class StackProcess:
    """A process that runs, or ran.

    States: queued, waiting, starting, ready, restarting, done, failed, stopped.
    """

    def __init__(self, spec: ProcessSpec, log: Path, starter: Starter | None = None) -> None:
        """starter: who starts it; without one it is a child of this process."""
        self.spec = spec
        self.log = log
        self.state = "waiting"
        self.address = ""
        # Where it serves GET /metrics; "" if it does not.
        self.metrics = ""
        self.restarts = 0
        # Seconds from its start, or from `begin` if it was held, until it was ready; 0 before that.
        self.start_s = 0.0
        self._began_at = 0.0
        self.ready = asyncio.Event()
        self._starter = starter or LocalStarter()
        self._process: StartedProcess | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def lost(self) -> str:
        """The reason why its machine, not the process, ended it; "" if it did not."""
        return self._process.lost if self._process else ""

    async def start(self, environment: Mapping[str, str], *, held: bool = False) -> None:
        """Starts it with these variables instead of the launcher's own.

        held: it loads what it imports, and then waits until `begin` is called because what it needs is ready.
        """
        self.state = "waiting" if held else "starting"
        self._began_at = time.monotonic()
        self.ready.clear()
        variables = {**environment, **self.spec.environment, **({AWAIT_VARIABLE: "1"} if held else {})}
        order = StartOrder(self.spec.name, self.spec.arguments, variables, self.log, held, self.spec.nice)
        self._process = await self._starter.start(order)
        self._reader = asyncio.create_task(self._process.follow(self._serves))

    async def placed(self) -> None:
        """Waits until it runs somewhere, or has ended. Raises ProcessFailed after the queue's bound."""
        assert self._process is not None
        placing = asyncio.ensure_future(self._process.placed())
        try:
            await asyncio.wait([placing], timeout=0.0)
            if not placing.done():
                before, self.state = self.state, "queued"
                await placing
                self.state = self.state if self.ready.is_set() else before
                self._began_at = time.monotonic()
            placing.result()
        finally:
            placing.cancel()
        if self._process.place:
            self.note(f"runs on {self._process.place}")

    def begin(self, environment: Mapping[str, str]) -> None:
        """Starts the process's work, as what it needs is ready: adds variables to those of its start."""
        if not self.ready.is_set():  # one that did not wait may serve already
            self.state = "starting"
            self._began_at = time.monotonic()
        if self._process is not None:
            self._process.begin(environment)

    def note(self, line: str) -> None:
        """Adds a line of the launcher's own to the log."""
        with open(self.log, "ab") as log:
            log.write(f"earl: {line}\n".encode())

    def _serves(self, report: ReadyLine) -> None:
        self.address, self.metrics = report.address, report.metrics
        self.become_ready("ready")

    def become_ready(self, state: str) -> None:
        """Lets those begin that need it. state: "ready", or "done" for a job."""
        self.state, self.start_s = state, time.monotonic() - self._began_at
        self.ready.set()

    async def wait(self) -> int:
        """Waits for the process's end and its last output. Returns the exit code, negative for a signal."""
        assert self._process is not None and self._reader is not None
        code = await self._process.wait()
        # A grandchild may hold the pipe open: its last lines are not worth a hang.
        await asyncio.wait([self._reader], timeout=1.0)
        self._reader.cancel()
        return code

    def signal(self, signal_number: int) -> None:
        """Signals its whole process group; nothing if it has ended."""
        if self._process is not None:
            self._process.signal(signal_number)

    def terminate(self) -> None:
        """SIGTERM to the process alone: it drains, and ends what it started itself."""
        if self._process is not None:
            self._process.terminate()

    # --- reason for its end -----------------------------------------------------------------

    def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """The last lines of its log."""
        return last_lines(self.log, lines)

    def failure(self, code: int, doing: str) -> EarlError:
        """The reason for its end: the error that it reported if it did, with its last lines as a note.

        A process prints `earl: error: message; remedy` and ends with its error's exit code; the
        launcher then ends with the same code and line, so that a mistake reads the same however
        deep it was found. Anything else is ProcessFailed.
        """
        lines = self.tail(200)
        errors = [line.removeprefix(ERROR_PREFIX) for line in lines if line.startswith(ERROR_PREFIX)]
        kind = error_of_exit_code(code) if errors else None
        if kind is not None:
            return kind(f"{self.spec.name}: {errors[-1]}")
        if self.lost:
            return ProcessFailed(f"{self.spec.name} was lost {doing}: {self.lost}", f"see {self.log}")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        # A truncated arena ends who reads it, by a signal: the stack that was written last names it.
        arenas = [line for line in lines if last_words.READS in line] if code == -signal.SIGBUS else []
        last = [*lines[-1:], *arenas[-1:], *errors[-1:]][-1].strip() if lines else "its log is empty"
        error = ProcessFailed(f"{self.spec.name} {how} {doing}: {last}", f"see {self.log}")
        error.add_note("\n".join(lines[-TAIL_LINES:]))
        return error


def last_lines(log: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log, oldest first, structured ones as a person would write them; else []."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    shown = (part for line in text.splitlines() for part in readable(line))
    return [line for line in shown if line.strip()][-lines:]


def readable(line: str) -> list[str]:
    """A line of a log without the structure that `earl.obs.log` gives it: level, message, traceback."""
    if not line.startswith("{"):
        return [line]
    try:
        record = json.loads(line)
        return [f"{record['level']}: {record['message']}", *record.get("traceback", "").splitlines()]
    except (ValueError, KeyError, TypeError):
        return [line]


def error_of_exit_code(code: int) -> type[EarlError] | None:
    """The error that alone ends with this code; None for 0, 1 and codes that are not in the catalogue."""
    kinds = (kind for kind in catalogue().values() if kind.exit_code == code)
    return next(kinds, None) if code > 1 else None
