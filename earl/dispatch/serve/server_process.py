"""The owner's handle on its serving process, which answers reads over the wire.

A read over TCP is emulated by its target, so a process of its own maps the arena: reads progress
while the owner computes. It lives no longer than its owner: it ends when its stdin does.

    start ─► serves ─► ended ─► pause, 1 s at most ─► start at the same address ─► serves ...
                          ▲                                  │
                          └────────── did not start ◄────────┘   STARTS times in a row: `ended` raises

Promise: however often it ends, another is started for as long as its owner lives. An owner whose arena cannot
be served learns it from `ended`, and ends with that error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from asyncio.subprocess import Process
from functools import partial
from typing import NoReturn, Protocol

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.regions import ArenaRef
from earl.dispatch.requirement import refuse_unmet
from earl.dispatch.transport.base import failure_of
from earl.errors import InsecureBind, TransportUnavailable
from earl.rpc.peers import advertised_address

log = logging.getLogger(__name__)

# Long, for a busy machine: a process that cannot start ends, which is noticed at once.
_START_S = 60.0
_STOP_S = 3.0
# Starts in a row that may fail. Pauses before a start: after an end soon after the last start, doubled each
# time, none after a process that served for _SETTLED_S.
STARTS = 20
FIRST_PAUSE_S, LONGEST_PAUSE_S, _SETTLED_S = 0.05, 1.0, 10.0


class _Spawn(Protocol):
    """Starts the process on a port, 0 for any; returns it and the address that readers connect to."""

    async def __call__(self, *, port: int) -> tuple[Process, str]: ...


class ServingProcess:
    """`address` is host:port of what readers connect to; it stays the same across restarts."""

    def __init__(self, owner: str, spawn: _Spawn, process: Process, address: str) -> None:
        self._owner, self._spawn = owner, spawn
        self._process, self.address = process, address
        self.restarts = 0
        self._watching = asyncio.create_task(self._watch(), name="watch serving process")
        self._watching.add_done_callback(failure_of)

    @classmethod
    async def start(cls, arena: ArenaRef, config: DataPlaneConfig, secret: bytes) -> ServingProcess:
        """Raises InsecureBind off loopback unless the network is trusted, TransportUnavailable."""
        refuse_unmet(config)
        if not config.loopback and not config.trusted_network:
            raise InsecureBind(
                f"data_plane.bind = {config.bind!r} is off loopback and the wire carries no TLS",
                "set data_plane.trusted_network = true, or stay on 127.0.0.1",
            )
        spawn = partial(_spawn, arena, config, secret)
        return cls(arena.owner, spawn, *await spawn(port=0))

    async def ended(self) -> NoReturn:
        """Waits until the arena is served no more, and raises TransportUnavailable."""
        await asyncio.shield(self._watching)
        raise AssertionError("unreachable")

    async def stop(self) -> None:
        """Ends the process; reads in progress over the wire fail with PeerLost."""
        self._watching.cancel()
        await asyncio.wait([self._watching])
        process = self._process
        if process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            log.warning("serving process %d ignored the end of its input: killed", process.pid)
            await _kill(process)

    async def _watch(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            started_s = time.monotonic()
            code = await self._process.wait()
            if time.monotonic() - started_s >= _SETTLED_S:
                pause_s = FIRST_PAUSE_S
            log.error("serving process of %s ended with %d: starting another", self._owner, code)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            await self._start_again()
            self.restarts += 1

    async def _start_again(self) -> None:
        """Starts a process at the same address. Raises TransportUnavailable after STARTS failures."""
        port = int(self.address.rpartition(":")[2])
        for failures in range(1, STARTS + 1):
            try:
                self._process, self.address = await self._spawn(port=port)
                return
            except TransportUnavailable as error:
                log.error("%s", error)
                if failures == STARTS:
                    raise TransportUnavailable(
                        f"the arena of {self._owner} is not served any more: {error.message}", error.remedy
                    ) from error
            await asyncio.sleep(LONGEST_PAUSE_S)


async def _spawn(
    arena: ArenaRef, config: DataPlaneConfig, secret: bytes, *, port: int
) -> tuple[Process, str]:
    """Starts a serving process and waits for its address; raises TransportUnavailable."""
    arguments = ["earl.dispatch.serve", "--wire", config.wire, "--bind", config.bind, "--port", str(port)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    # On stdin: the secret is in no command line.
    served = {"path": arena.path, "nonce": arena.nonce, "incarnation": arena.incarnation}
    try:
        process.stdin.write(json.dumps({"secret": secret.hex(), **served}).encode() + b"\n")
        async with asyncio.timeout(_START_S):
            line = await process.stdout.readline()
        bound = json.loads(line)["address"]
        return process, bound if config.loopback else advertised_address(bound, keep_port=True)
    except (TimeoutError, ValueError, KeyError, ConnectionError) as error:
        await _kill(process)
        raise TransportUnavailable(
            f"the serving process of {arena.owner} did not start on {config.bind}:{port}",
            f"see its message above; is extra `{'nixl' if config.wire == 'nixl' else 'stack'}` installed?",
        ) from error
    except BaseException:
        await _kill(process)
        raise


async def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
