"""The owner's handle on its serving process, which answers reads over the wire.

A read over TCP is emulated by its target, so a process of its own maps the arena: reads progress
while the owner computes. It lives no longer than its owner: it ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.regions import ArenaRef
from earl.dispatch.requirement import refuse_unmet
from earl.errors import InsecureBind, TransportUnavailable
from earl.rpc.peers import advertised

log = logging.getLogger(__name__)

# Long, for a busy machine: a process that cannot start ends, which is noticed at once.
_START_S = 60.0
_STOP_S = 3.0
# Ends in a row, each sooner than that after its start, until it is given up.
_RESTARTS, _SETTLED_S = 5, 60.0


class ServingProcess:
    """`address` is host:port of what readers connect to; it stays the same across restarts."""

    def __init__(self, arena: ArenaRef, config: DataPlaneConfig, secret: bytes) -> None:
        self._arena = arena
        self._host = config.bind
        self._loopback = config.loopback
        self._wire = config.wire
        self._secret = secret
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self.address = ""

    @classmethod
    async def start(cls, arena: ArenaRef, config: DataPlaneConfig, secret: bytes) -> ServingProcess:
        """Raises InsecureBind off loopback unless the network is trusted, TransportUnavailable."""
        refuse_unmet(config)
        if not config.loopback and not config.trusted_network:
            raise InsecureBind(
                f"data_plane.bind = {config.bind!r} is off loopback and the wire carries no TLS",
                "set data_plane.trusted_network = true, or stay on 127.0.0.1",
            )
        serving = cls(arena, config, secret)
        await serving._spawn(port=0)
        serving._watching = asyncio.create_task(serving._watch(), name="watch serving process")
        return serving

    async def stop(self) -> None:
        """End the process; reads in progress over the wire fail with PeerLost."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            log.warning("serving process %d ignored the end of its input: killed", process.pid)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _spawn(self, port: int) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "earl.dispatch.serve",
            "--wire",
            self._wire,
            "--bind",
            self._host,
            "--port",
            str(port),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        # On stdin: the secret stands in no command line.
        orders = {
            "secret": self._secret.hex(),
            "path": self._arena.path,
            "nonce": self._arena.nonce,
            "incarnation": self._arena.incarnation,
        }
        try:
            process.stdin.write(json.dumps(orders).encode() + b"\n")
            async with asyncio.timeout(_START_S):
                line = await process.stdout.readline()
            self.address = self._reached(json.loads(line)["address"])
        except (TimeoutError, ValueError, KeyError, ConnectionError) as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise TransportUnavailable(
                f"the serving process of {self._arena.owner} did not start on {self._host}:{port}",
                f"see its message above; is extra `{'nixl' if self._wire == 'nixl' else 'stack'}` installed?",
            ) from error

    def _reached(self, bound: str) -> str:
        """The address that readers connect to: on loopback the bound one, otherwise the advertised one."""
        return bound if self._loopback else advertised(bound, own_port=True)

    async def _watch(self) -> None:
        early = 0
        while early < _RESTARTS:
            assert self._process is not None
            started = time.monotonic()
            code = await self._process.wait()
            early = early + 1 if time.monotonic() - started < _SETTLED_S else 1
            log.error("serving process of %s ended with %d: starting another", self._arena.owner, code)
            try:
                await self._spawn(port=int(self.address.rpartition(":")[2]))
            except TransportUnavailable as error:
                log.error("%s", error)
                return
        log.error("serving process of %s ended too often: not served any more", self._arena.owner)
