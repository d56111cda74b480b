"""Reads through shared memory: the arena's file mapped read-only, strided copies straight to the target.

Large copies run on a thread (numpy lets go of the GIL), so the loop that asked stays responsive.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from earl.dispatch.arena import MappedArena, block_checksums
from earl.dispatch.descriptor import ArenaRef, host_id
from earl.dispatch.transport.base import Piece, Transport, settle
from earl.errors import ChecksumMismatch, RegionGone, TransportUnavailable

# Below this a copy takes less time than handing it to a thread.
INLINE_BYTES = 1 << 20
# How much is copied between two looks at whether the read was cancelled.
STEP_BYTES = 16 << 20
_THREADS = 2


class SharedMemory(Transport):
    """Arenas are mapped once and kept until their owner is gone."""

    path = "shm"

    def __init__(self) -> None:
        self._mapped: dict[tuple[str, int], MappedArena] = {}
        self._opening: dict[tuple[str, int], asyncio.Future[MappedArena]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "earl-shm")

    async def open(self, arena: ArenaRef) -> MappedArena:
        """The arena's mapping. Raises RegionGone when it is gone or another's, TransportUnavailable."""
        key = (arena.path, arena.nonce)
        mapped = self._mapped.get(key)
        if mapped is not None:
            if not mapped.abandoned:
                return mapped
            self._forget_abandoned()
            raise RegionGone(f"arena {arena.path} is gone", "its owner ended; read a newer descriptor")
        if arena.host != host_id():
            raise TransportUnavailable(
                f"arena of {arena.owner} is on another machine", 'use data_plane.transport = "auto" or "ucx"'
            )
        opening = self._opening.get(key)
        if opening is None:
            self._forget_abandoned()
            loop = asyncio.get_running_loop()
            opening = loop.run_in_executor(
                self._threads, MappedArena, arena.path, arena.nonce, arena.incarnation
            )
            self._opening[key] = opening
            opening.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(opening)

    async def read(self, arena: ArenaRef, pieces: Sequence[Piece], *, verify: bool) -> None:
        mapped = await self.open(arena)
        stop = threading.Event()
        if sum(piece.size_bytes for piece in pieces) <= INLINE_BYTES:
            _copy_all(mapped, pieces, verify, stop)
            return
        work = asyncio.get_running_loop().run_in_executor(
            self._threads, _copy_all, mapped, pieces, verify, stop
        )
        try:
            await asyncio.shield(work)
        finally:
            stop.set()
            await settle(work)

    async def close(self) -> None:
        for opening in list(self._opening.values()):
            await settle(opening)
        self._threads.shutdown(wait=False)
        for mapped in self._mapped.values():
            mapped.close()
        self._mapped.clear()

    def _opened(self, key: tuple[str, int], done: asyncio.Future[MappedArena]) -> None:
        self._opening.pop(key, None)
        if not done.cancelled() and done.exception() is None:
            self._mapped[key] = done.result()

    def _forget_abandoned(self) -> None:
        for key, mapped in list(self._mapped.items()):
            if mapped.abandoned:
                del self._mapped[key]  # closed once the last read that still copies lets go of it


def _copy_all(mapped: MappedArena, pieces: Sequence[Piece], verify: bool, stop: threading.Event) -> None:
    for piece in pieces:
        _, region_bytes = mapped.extent(piece.region.slot, piece.region.generation)
        if piece.stop_bytes > region_bytes:
            raise RegionGone(
                f"region {piece.region.slot} of {mapped.path}: {region_bytes} bytes, not {piece.stop_bytes}",
                "read a newer descriptor",
            )
        for step in piece.split(STEP_BYTES):
            if stop.is_set():
                return
            source = mapped.view(
                step.target.dtype,
                step.region.offset_bytes + step.offset_bytes,
                step.target.shape,
                step.strides_bytes,
            )
            np.copyto(step.target, source)
        mapped.check(piece.region.slot, piece.region.generation)
    if verify:
        _verify(mapped, pieces)


def _verify(mapped: MappedArena, pieces: Sequence[Piece]) -> None:
    touched: dict[int, tuple[Piece, set[int]]] = {}
    for piece in pieces:
        if piece.region.checksums:
            touched.setdefault(piece.region.slot, (piece, set()))[1].update(piece.blocks())
    for piece, blocks in touched.values():
        region = piece.region
        whole = mapped.view(np.dtype(np.uint8), region.offset_bytes, (region.size_bytes,))
        for block in sorted(blocks):
            stop = min((block + 1) * region.checksum_block_bytes, region.size_bytes)
            found = block_checksums(whole, block, stop, region.checksum_block_bytes)
            mapped.check(region.slot, region.generation)
            refuse_mismatch(region.checksums[block], found[0], block, f"{mapped.path} region {region.slot}")


def refuse_mismatch(expected: int, found: int, block: int, where: str) -> None:
    """Raises ChecksumMismatch naming the block."""
    if expected != found:
        raise ChecksumMismatch(
            f"block {block} of {where} has xxh3 {found:016x}, published was {expected:016x}",
            "read again; if it stays, the owner's memory or the network is faulty",
        )
