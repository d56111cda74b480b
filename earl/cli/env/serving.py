"""`earl env serve`: several processes that serve the same environments, watched and drained together.

replica ─► ready ─► … ─► ended: tried again after a pause that doubles, RESTARTS times in a row
   └─ ended before it was ever ready: a mistake, not a crash; all are stopped, with its exit code
SIGTERM, Ctrl-C ─► SIGTERM to each ─► their episodes end within drain_s ─► SIGKILL for what is left
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from typing import Annotated

import typer

from earl.cli.env.arguments import Gateway, gateway_of
from earl.cli.lib import completion
from earl.env.base import ISOLATIONS
from earl.errors import ConfigError, ProcessFailed
from earl.rpc.auth import split_address
from earl.rpc.main import announce, run
from earl.stack.starter import ready_line

RESTARTS = 5
FIRST_PAUSE_S = 0.5
# A replica that served for this long begins to count again.
HEALTHY_S = 60.0
# Beyond drain_s, for the last words of each.
MARGIN_S = 5.0

TARGET = "An environment, or a function that returns environments."
Target = Annotated[
    str, typer.Argument(metavar="MODULE:CLASS", help=TARGET, autocompletion=completion.targets)
]
LISTEN = "Where a gateway dials instead; replicas listen at ports in a row."


def serve(
    target: Target,
    gateway: Gateway = "",
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help=LISTEN)] = "",
    replicas: Annotated[int, typer.Option(min=1, max=256, help="Number of processes.")] = 1,
    capacity: Annotated[int, typer.Option(min=1, max=65_536, help="Open sessions per process.")] = 64,
    isolation: Annotated[
        str,
        typer.Option(metavar="thread|process", help="Where episodes run; else as each environment declares."),
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the host; replicas add their number.")] = "",
    drain_s: Annotated[float, typer.Option(min=0.0, help="How long open episodes may continue.")] = 10.0,
) -> None:
    """Serve environments through a gateway, in as many processes as there are replicas.

    Prints a line of JSON once all are attached, or listen; logs go to standard error. Tokens
    and TLS are those of the environment: EARL_TOKEN, EARL_TLS_CA (docs/security.md).
    """
    if listen and gateway:
        raise ConfigError(f"--gateway {gateway} and --listen {listen} exclude each other", "give one of them")
    if ":" not in target:
        raise ConfigError(f"{target!r} does not name an object", 'give "package.module:Class"')
    if isolation not in ("", *ISOLATIONS):
        raise ConfigError(f"--isolation {isolation!r} is not known", f"use {' or '.join(ISOLATIONS)}")
    name = name or f"{socket.gethostname().partition('.')[0]}-{os.getpid()}"
    shared = [target, "--capacity", str(capacity), "--drain-s", str(drain_s)]
    shared += ["--isolation", isolation]
    where = places(listen, replicas) if listen else [["--gateway", gateway_of(gateway)]] * replicas
    watched = [Replica(f"{name}-{number}", [*shared, *there]) for number, there in enumerate(where)]
    run(lambda stop: supervise(watched, stop, name, drain_s))


def places(listen: str, replicas: int) -> list[list[str]]:
    """Returns each replica's address arguments: consecutive ports, or any free one for port 0."""
    host, first = split_address(listen)
    if first and first + replicas - 1 > 65_535:
        raise ConfigError(
            f"--listen {listen} has too few ports after it for {replicas} replicas", "give a smaller port"
        )
    shown = f"[{host}]" if ":" in host else host
    ports = [first + number if first else 0 for number in range(replicas)]
    return [["--listen", f"{shown}:{port}"] for port in ports]


class Replica:
    """One host process.

    ready: it is attached to the gateway, or listens. address: its own, or the gateway's.
    """

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.address = ""
        self.ready = asyncio.Event()
        self._command = [sys.executable, "-m", "earl.env.replica", *command]
        self._command += ["--name", name, "--parent", str(os.getpid())]
        self._process: asyncio.subprocess.Process | None = None

    async def keep(self, stop: asyncio.Event) -> int:
        """Runs it until `stop`, again after a crash; 0, or the exit code of a permanent error.

        Raises ProcessFailed after RESTARTS crashes in a row.
        """
        crashes = 0
        while True:
            began = time.monotonic()
            code = await self._run()
            if stop.is_set():
                return 0
            if not self.ready.is_set():
                return code or ProcessFailed.exit_code
            crashes = 1 if time.monotonic() - began > HEALTHY_S else crashes + 1
            if crashes > RESTARTS:
                text = f"{self.name} ended {crashes} times in a row, the last time with exit code {code}"
                raise ProcessFailed(text, "see its output on standard error")
            try:
                async with asyncio.timeout(FIRST_PAUSE_S * 2 ** (crashes - 1)):
                    await stop.wait()
                return 0
            except TimeoutError:
                sys.stderr.write(f"{self.name} ended with exit code {code}: started again\n")

    async def _run(self) -> int:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal is the supervisor's to handle
        )
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            report = ready_line(line)
            if report is None:  # what the environment prints
                sys.stderr.buffer.write(line)
                sys.stderr.flush()
            else:
                self.address = report.address
                self.ready.set()
        return await self._process.wait()

    def signal(self, number: int) -> None:
        """Sends a signal to the process alone; SIGKILL also to all processes that it started."""
        if self._process is None or self._process.returncode is not None:
            return
        if number == signal.SIGKILL:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)


async def supervise(replicas: list[Replica], stop: asyncio.Event, name: str, drain_s: float) -> None:
    """Keeps all until `stop` or until one cannot be kept."""
    keepers = [asyncio.create_task(replica.keep(stop)) for replica in replicas]
    others = [asyncio.create_task(stop.wait()), asyncio.create_task(_announce_keepers(replicas, name))]
    try:
        done, _ = await asyncio.wait({others[0], *keepers}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.set()
        for task in others:
            task.cancel()
        for number, bound_s in ((signal.SIGTERM, drain_s + MARGIN_S), (signal.SIGKILL, MARGIN_S)):
            for replica in replicas:
                replica.signal(number)
            await asyncio.wait({*others, *keepers}, timeout=bound_s)
    code = max((task.result() for task in keepers if task in done), default=0)
    if code:  # its own message is on standard error
        raise SystemExit(code)


async def _announce_keepers(replicas: list[Replica], name: str) -> None:
    for replica in replicas:
        await replica.ready.wait()
    announce(name, ",".join(dict.fromkeys(replica.address for replica in replicas)))
