"""Reads through NIXL: one-sided, out of the arena that the owner's serving process registered.

```
read ─ slots as published? ─ fetches of ≤ 8 MiB ─► 3 on a link ─► READ into a pooled, registered buffer
       ─► digest whole blocks ─► copy to the targets ─ slots still as published? ─► done
```
The slot table lies in the arena's file, so it is read as the payload is: a region's generation only grows,
hence one that is unchanged after the payload arrived was unchanged while it was read. A transfer cannot be
taken back, so NIXL never writes a target: what a cancelled read still gets lands in a buffer that nobody
uses before the transfer's end. Long-lived targets could be registered and written directly; the copy out
of a warm buffer costs less than registering fresh ones, and most targets are strided.

UCX answers everyone who reaches its port: keep it on loopback or on a trusted network. The handshake guards
where memory lies, not the port.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import xxhash

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.pieces import Pieces
from earl.dispatch.describe.regions import ArenaRef
from earl.dispatch.memory.arena_file import SLOT_BYTES, SLOT_WORDS
from earl.dispatch.transport.base import Transport, failure_of, refuse_mismatch, run_all, settle
from earl.dispatch.transport.connections import Connections
from earl.dispatch.transport.copying import copy
from earl.dispatch.transport.nixl.agent import Wire, wire_here
from earl.dispatch.transport.nixl.link import CONCURRENCY, NixlLink
from earl.dispatch.transport.nixl.node import NixlNode
from earl.dispatch.transport.nixl.spans import Fetch, fetches, near
from earl.errors import ChecksumMismatch, PeerLost, PeerUnreachable, RegionGone

# Two sizes of buffers: for payloads, and for what is small, slots above all. How many of each are kept idle.
BUFFER_BYTES, _KEPT = 8 << 20, 8
_SMALL_BYTES, _SMALL_KEPT = 64 << 10, 64
# Below this a copy takes less time than handing it to a thread.
_INLINE_BYTES = 1 << 20
_THREADS = 2


class Nixl(Transport):
    """Reads the arenas that owners' serving processes registered, each over one link."""

    def __init__(self, config: DataPlaneConfig, secret: bytes) -> None:
        """Raises TransportUnavailable when NIXL is not installed or its wire is not there."""
        self._secret = secret
        self._wire: Wire = wire_here()
        self.path = f"nixl-{self._wire}"
        name = f"reader-{secrets.token_hex(8)}"
        self._node = NixlNode(name, self._wire, loopback=config.loopback)
        self._buffers = _Buffers(self._node, BUFFER_BYTES, _KEPT)
        self._small = _Buffers(self._node, _SMALL_BYTES, _SMALL_KEPT)
        self._links = Connections(self._open, trusted=config.trusted_network)
        self._threads = ThreadPoolExecutor(_THREADS, "earl-nixl")

    async def read(self, arena: ArenaRef, pieces: Pieces, *, verify: bool) -> int:
        if not len(pieces):
            return 0

        async def read(link: NixlLink) -> None:
            await self._read(link, arena, pieces, verify)

        _, times = await self._links.until_answered(arena.owner, arena.nixl_address, read)
        return times

    def unreachable(self, arena: ArenaRef) -> PeerUnreachable | None:
        return self._links.unreachable(arena.nixl_address)

    async def _read(self, link: NixlLink, arena: ArenaRef, pieces: Pieces, verify: bool) -> None:
        if link.header.nonce != arena.nonce:
            raise RegionGone(f"{link.peer} serves another arena than {arena.path}", "read a newer descriptor")
        await self._refuse_changed(link, pieces)
        planned = fetches(pieces, BUFFER_BYTES, verify=verify)

        async def work() -> None:
            for fetch in planned:
                async with self._fetched(link, fetch.start, fetch.length) as buffer:
                    await self._deliver(fetch, buffer, pieces, link.peer)

        try:
            await run_all(work() for _ in range(CONCURRENCY))
        except ChecksumMismatch:
            await self._refuse_changed(link, pieces)  # what was freed meanwhile may have been overwritten
            raise
        await self._refuse_changed(link, pieces)

    async def close(self) -> None:
        await self._links.close()
        await self._node.close()
        self._threads.shutdown(wait=False)

    async def _refuse_changed(self, link: NixlLink, pieces: Pieces) -> None:
        """Raises RegionGone unless every region is published where and as in the pieces."""
        regions = pieces.regions
        used = np.unique(pieces.region)
        used = used[np.argsort(regions.slot[used], kind="stable")]
        slots = regions.slot[used]
        if slots[0] < 0 or slots[-1] >= link.header.slots:
            raise RegionGone(f"{link.peer} has no slot {slots[-1]}", "read a newer descriptor")
        # The same slot may be named twice: read it once.
        unique, which = np.unique(slots, return_inverse=True)
        start, length, offset = near(link.slots(unique), np.full(len(unique), SLOT_BYTES))
        async with self._fetched(link, start, length) as buffer:
            words = buffer[: int(length.sum())].view(np.uint64).reshape(-1, SLOT_WORDS)
            actual = words[offset // SLOT_BYTES][which]
        expected = np.stack(
            [regions.generation[used], regions.offset_bytes[used], regions.size_bytes[used]], axis=1
        ).astype(np.uint64)
        changed = (actual[:, :2] != expected[:, :2]).any(axis=1) | (expected[:, 0] % 2 == 0)
        changed |= actual[:, 2] < expected[:, 2]
        stop = np.zeros(len(regions), np.int64)
        np.maximum.at(stop, pieces.region, pieces.stop)
        changed |= (stop > regions.size_bytes)[used] | (pieces.offset.min() < 0)
        if changed.any():
            bad = int(np.flatnonzero(changed)[0])
            raise RegionGone(
                f"region {slots[bad]} of {link.peer} holds (generation, offset, size) "
                f"{tuple(actual[bad, :3].tolist())}, not {tuple(expected[bad].tolist())}",
                "it was freed or reused; read a newer descriptor",
            )

    @asynccontextmanager
    async def _fetched(
        self, link: NixlLink, start: np.ndarray, length: np.ndarray
    ) -> AsyncIterator[np.ndarray]:
        """Spans of the arena's file, end to end in a buffer that is the caller's until it leaves."""
        small = int(length.sum()) <= _SMALL_BYTES
        pool = self._small if small else self._buffers
        async with link.small_window if small else link.window:
            buffer = await pool.take()
            transfer = self._node.read(link.agent, buffer, link.addresses(start), length.astype(np.uint64))
            try:
                with link.expecting():
                    await asyncio.wait((transfer.future, link.ended), return_when=asyncio.FIRST_COMPLETED)
                if not transfer.future.done():
                    raise link.lost()
                failure = failure_of(transfer.future)
                if failure is not None:
                    link.lose()
                    raise PeerLost(f"{link.peer}: {failure}", "its owner died or restarted") from failure
                yield buffer
            finally:
                if transfer.ended:
                    pool.give(buffer)
                else:
                    transfer.when_ended.append(lambda: pool.give(buffer))

    async def _deliver(self, fetch: Fetch, buffer: np.ndarray, pieces: Pieces, peer: str) -> None:
        if fetch.size_bytes <= _INLINE_BYTES:
            deliver(fetch, buffer, pieces, peer)
            return
        work = asyncio.get_running_loop().run_in_executor(self._threads, deliver, fetch, buffer, pieces, peer)
        try:
            await asyncio.shield(work)
        finally:
            await settle(work)

    async def _open(self, address: str, peer: str, number: int) -> NixlLink:
        return await NixlLink.open(self._node, self._wire, address, peer, number, self._secret)


class _Buffers:
    """Registered, touched buffers of one size; idle ones beyond `kept` are given up."""

    def __init__(self, node: NixlNode, size_bytes: int, kept: int) -> None:
        self._node = node
        self._size_bytes = size_bytes
        self._kept = kept
        self._idle: list[np.ndarray] = []
        self._registered: dict[int, tuple[np.ndarray, Any]] = {}

    async def take(self) -> np.ndarray:
        """A uint8 array of the pool's size, its bytes undefined."""
        if self._idle:
            return self._idle.pop()
        buffer = np.full(self._size_bytes, 0, np.uint8)
        registering = self._node.submit(lambda agent: agent.register(buffer))
        try:
            described = await asyncio.shield(registering)
        except asyncio.CancelledError:
            # Kept, for it will be registered.
            registering.add_done_callback(lambda done: self._keep(buffer, done))
            raise
        self._registered[id(buffer)] = buffer, described
        return buffer

    def give(self, buffer: np.ndarray) -> None:
        """Returns what `take` gave, once nothing touches it any more."""
        if len(self._idle) < self._kept:
            self._idle.append(buffer)
            return
        buffer, described = self._registered.pop(id(buffer))

        def deregister(agent: Any, held: np.ndarray = buffer) -> None:
            agent.deregister(described)

        self._node.submit(deregister).add_done_callback(failure_of)

    def _keep(self, buffer: np.ndarray, done: asyncio.Future[Any]) -> None:
        if not done.cancelled() and failure_of(done) is None:
            self._registered[id(buffer)] = buffer, done.result()
            self.give(buffer)


def deliver(fetch: Fetch, buffer: np.ndarray, pieces: Pieces, peer: str) -> None:
    """Checks a fetched buffer's checksum blocks, then copies its pieces. Raises ChecksumMismatch."""
    start = 0
    for (region, block), stop in zip(fetch.block.tolist(), fetch.stop.tolist(), strict=True):
        digest = xxhash.xxh3_64_intdigest(buffer[start:stop].data)
        where = f"region {int(pieces.regions.slot[region])} of {peer}"
        refuse_mismatch(pieces.regions.checksum(region, block), digest, block, where)
        start = stop
    copy(buffer, fetch.pieces)
