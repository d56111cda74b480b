"""The process of one rank of an engine: it imports what the engine needs, then learns which rank it is.

    start(kind) ──► imports ──► waits ── assign(channels) ──► a rank of that engine
                                  └── end, or the service has ended ──► it ends

Until it is assigned it has imports alone: no model, no process group, no memory of a device. So one may be
started long before there is an engine for it (standby.py), and most of an engine's start is over by then.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.process.interpreter import interpreter_of

MODULE = "services.rollout.engines.process"
# Descriptors that one message takes: a channel, one for each follower, and the memory for sums.
MOST_DESCRIPTORS = 250
_IMPORTED, _WITH_SUMS, _WITHOUT_SUMS = b"i", b"s", b"-"


@dataclass(frozen=True, slots=True)
class RankKind:
    """The properties of an engine that its processes are started with."""

    python: str
    engine: str
    threads: int

    @classmethod
    def of(cls, spec: EngineSpec) -> RankKind:
        """Raises EngineNotInstalled if the engine's interpreter is not there."""
        return cls(interpreter_of(spec), spec.engine, spec.threads)


class EngineRankProcess:
    """A process that waits for its assignment, or has it."""

    def __init__(self, process: asyncio.subprocess.Process, service: socket.socket) -> None:
        self.process = process
        self._service = service
        self._imported = False

    @classmethod
    async def start(cls, kind: RankKind, *, ahead: bool = False) -> EngineRankProcess:
        """Starts one; its imports continue after the call, at low priority if it is `ahead` of its use."""
        environment = dict(os.environ, OMP_NUM_THREADS=str(kind.threads), TOKENIZERS_PARALLELISM="false")
        if kind.engine == "torch":
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                environment.setdefault(name, "lo")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            number = theirs.fileno()
            try:
                # What libraries print goes to stderr: stdout is the service's ready line.
                process = await asyncio.create_subprocess_exec(
                    kind.python, "-m", MODULE, str(number), kind.engine, *(["--ahead"] if ahead else []),
                    pass_fds=[number], env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=2,
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        return cls(process, ours)

    @property
    def waits(self) -> bool:
        """Returns whether it can be assigned: it runs, and has no assignment."""
        return self.process.returncode is None and self._service.fileno() >= 0

    @property
    def ready(self) -> bool:
        """Returns whether it waits and its imports are done."""
        if not self.waits or self._imported:
            return self.waits
        try:
            return bool(self._service.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    async def imported(self) -> None:
        """Returns once its imports are done, or it has ended. Not after `assign`."""
        if not self._imported:
            await asyncio.get_running_loop().sock_recv(self._service, 1)
            self._imported = True

    def assign(self, channel: int, followers: Sequence[int], sums: int) -> None:
        """Makes it the rank that has these descriptors. sums: of the memory in which ranks add up, or -1.

        A process that has ended gets nothing; its engine then notices that it is gone.
        """
        descriptors = [channel, *followers, *([sums] if sums >= 0 else [])]
        with self._service:
            try:
                socket.send_fds(self._service, [_WITH_SUMS if sums >= 0 else _WITHOUT_SUMS], descriptors)
            except OSError:
                return

    async def end(self) -> None:
        """Ends it if it was never assigned. Idempotent."""
        self._service.close()
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


def assigned(number: int) -> tuple[list[int], int] | None:
    """In the process: waits for the assignment; its channel and those to its followers, and the memory for
    sums or -1. None if the service has ended or needs it no more."""
    with socket.socket(fileno=number) as service:
        with suppress(OSError):  # one that has its assignment already is not waited for
            service.send(_IMPORTED)
        try:
            kind, descriptors, _, _ = socket.recv_fds(service, 1, MOST_DESCRIPTORS)
        except ConnectionResetError:  # the service ended, and had not read that the imports are done
            return None
    if not kind:
        return None
    if kind == _WITH_SUMS:
        return descriptors[:-1], descriptors[-1]
    return descriptors, -1
