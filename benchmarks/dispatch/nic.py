"""Network cards of a limited rate: one token bucket for each direction of each host.

A link is a serial line: what is sent over it queues behind what was reserved before. `reserve` is the
arithmetic, pure; `Nics` keeps the links of all hosts in a file that every process of the run maps.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

EGRESS, INGRESS = 0, 1
_FREE_AT, _BYTES, _WORDS = 0, 1, 2
# The depth of a bucket: unused time that a link may make up for, so that a process that wakes up late does
# not cost bandwidth. It fills only from the start of a round on.
BURST_NS = 50_000_000


def bytes_per_second(gbps: float) -> float:
    """1 Gbit/s is 125,000,000 bytes a second."""
    return gbps * 1e9 / 8


def reserve(free_at_ns: int, now_ns: int, size_bytes: int, rate: float) -> int:
    """The time at which the last of these bytes has passed a link, which is the link's next `free_at_ns`.

    Within any time t no more than rate x (t + BURST_NS) bytes pass, and since `Nics.start` no more than
    rate x t.
    """
    return max(free_at_ns, now_ns - BURST_NS) + round(size_bytes / rate * 1e9)


def direct_seconds(hosts: int, host_bytes: int, rate: float) -> float:
    """Seconds of an exchange all to all at once: each host sends, and receives, all but its own part."""
    return host_bytes * (hosts - 1) / hosts / rate


def central_seconds(hosts: int, host_bytes: int, rate: float) -> float:
    """Seconds of the same through a controller on one of the hosts, pipelined, full duplex.

    Its card lets in what hosts-1 others hold, and out what they want, but for what each keeps itself.
    """
    return host_bytes * (hosts - 1) ** 2 / hosts / rate


async def until(at_ns: int) -> None:
    """Sleeps until a time of the monotonic clock; return at once when it is past."""
    waiting_s = (at_ns - time.monotonic_ns()) / 1e9
    if waiting_s > 0:
        await asyncio.sleep(waiting_s)


class Cards(Protocol):
    """The network cards as a host's process passes them: sizes are bytes by (host, EGRESS or INGRESS).

    slabs: how many parts a host reads one after another, in_progress of them at once.
    """

    slabs: int
    in_progress: int

    async def carry(self, sizes: dict[tuple[int, int], int]) -> None: ...

    def carrying(self, sizes: dict[tuple[int, int], int]) -> AbstractAsyncContextManager[None]: ...

    def close(self) -> None: ...


class KernelCards:
    """Cards whose rate the kernel limits (benchmarks.network): bytes that are sent wait there, not here."""

    slabs = in_progress = 1

    async def carry(self, sizes: dict[tuple[int, int], int]) -> None:
        pass

    @asynccontextmanager
    async def carrying(self, sizes: dict[tuple[int, int], int]) -> AsyncIterator[None]:
        yield

    def close(self) -> None:
        pass


class Nics:
    """The cards of `hosts` hosts in one mapped file, which `create` makes before any process maps it."""

    slabs = 4
    in_progress = 3

    def __init__(self, path: Path, rate: float) -> None:
        self._rate = rate
        self._fd = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(self._fd, 0)
        self._links = np.frombuffer(self._map, np.int64).reshape(-1, 2, _WORDS)

    @staticmethod
    def create(path: Path, hosts: int) -> None:
        path.write_bytes(np.zeros((hosts, 2, _WORDS), np.int64).tobytes())

    def take(self, sizes: dict[tuple[int, int], int]) -> int:
        """Reserves bytes on links (host, EGRESS or INGRESS) at once; when the last has passed, in ns."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            now_ns = passed_ns = time.monotonic_ns()
            for (host, direction), size_bytes in sizes.items():
                link = self._links[host, direction]
                link[_FREE_AT] = reserve(int(link[_FREE_AT]), now_ns, size_bytes, self._rate)
                link[_BYTES] += size_bytes
                passed_ns = max(passed_ns, int(link[_FREE_AT]))
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
        return passed_ns

    def start(self) -> None:
        """Starts the clock: every link is free from now on, its bucket empty, nothing counted."""
        self._links[:, :, _FREE_AT] = time.monotonic_ns()
        self._links[:, :, _BYTES] = 0

    async def carry(self, sizes: dict[tuple[int, int], int]) -> None:
        """Returns once these bytes have passed these links."""
        await until(self.take(sizes))

    @asynccontextmanager
    async def carrying(self, sizes: dict[tuple[int, int], int]) -> AsyncIterator[None]:
        """Enters when the first byte may enter the busiest of these links; leaves once all have passed."""
        passed_ns = self.take(sizes)
        await until(passed_ns - round(max(sizes.values()) / self._rate * 1e9))
        yield
        await until(passed_ns)

    def carried(self) -> list[int]:
        """Bytes since the start through the busiest card: out, in."""
        return self._links[:, :, _BYTES].max(axis=0).tolist()

    def close(self) -> None:
        del self._links
        self._map.close()
        os.close(self._fd)


def cards_of(role: dict[str, Any]) -> Cards:
    """The cards of a process that was started with this role; the kernel's where it names no others."""
    return Nics(Path(role["nics"]), role["rate"]) if "nics" in role else KernelCards()
