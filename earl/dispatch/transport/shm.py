"""Reads through shared memory: the arena's file mapped read-only, strided copies straight to the target.

    sizes and generations ─► copy ─► digests of the blocks that were read from ─► generations

Large copies and digests run on a thread (both let go of the GIL), so the calling loop stays responsive. The
digests are of the arena's bytes after the copy: what was changed before or during the copy, and stays so, is
noticed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from earl.dispatch.describe.pieces import Pieces, Repeat
from earl.dispatch.describe.regions import ArenaRef, Regions, host_id
from earl.dispatch.memory.arena import MappedArena
from earl.dispatch.memory.digests import block_digests
from earl.dispatch.transport.base import Transport, refuse_mismatch, settle
from earl.dispatch.transport.copying import Views, copy
from earl.errors import PeerLost, RegionGone, TransportUnavailable

# Below this copying and hashing take less time than handing them to a thread.
INLINE_BYTES = 1 << 20
# How much is copied between two checks whether the read was cancelled.
STEP_BYTES = 16 << 20
_BLOCKS_AT_ONCE = 64
_THREADS = 2
_SWEEP_S = 1.0


class SharedMemory(Transport):
    """Arenas are mapped once and kept until their owner is gone."""

    path = "shm"

    def __init__(self) -> None:
        self._mapped: dict[tuple[str, int], MappedArena] = {}
        self._opening: dict[tuple[str, int], asyncio.Future[MappedArena]] = {}
        self._copying: set[asyncio.Future[None]] = set()
        self._views: WeakKeyDictionary[Repeat, Views] = WeakKeyDictionary()
        self._threads = ThreadPoolExecutor(_THREADS, "earl-shm")
        self._swept_s = time.monotonic()
        self._closed = False

    async def open(self, arena: ArenaRef) -> MappedArena:
        """The arena's mapping. Raises RegionGone if it is gone or another's, TransportUnavailable."""
        if self._closed:
            raise PeerLost(f"{arena.owner}: the reader is closing", "open another one")
        now_s = time.monotonic()
        if now_s > self._swept_s + _SWEEP_S:
            # A mapping keeps the memory of an owner that has ended.
            self._swept_s = now_s
            self._forget_abandoned(but=arena)
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
                self._threads, MappedArena, arena.path, arena.nonce, arena.incarnation, arena.file_system
            )
            self._opening[key] = opening
            opening.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(opening)

    async def read(self, arena: ArenaRef, pieces: Pieces, *, verify: bool) -> int:
        mapped = await self.open(arena)
        views = self._views_of(pieces)
        stop = threading.Event()
        copy_all = partial(_copy_all, mapped, pieces, views, verify, stop)
        hashed_bytes = int(pieces.regions.size_bytes.sum()) if verify else 0
        if pieces.size_bytes + hashed_bytes <= INLINE_BYTES:
            mapped.reading(copy_all)
            return 0
        work = asyncio.get_running_loop().run_in_executor(self._threads, mapped.reading, copy_all)
        self._copying.add(work)
        try:
            await asyncio.shield(work)
        finally:
            stop.set()
            await settle(work)
            self._copying.discard(work)
        return 0

    async def close(self) -> None:
        self._closed = True
        await settle(*self._opening.values(), *self._copying)
        self._threads.shutdown(wait=False)
        for mapped in self._mapped.values():
            mapped.close()
        self._mapped.clear()

    def _views_of(self, pieces: Pieces) -> Views | None:
        """The views of pieces that are copied again and again; None for all others."""
        if pieces.repeat is None:
            return None
        views = self._views.get(pieces.repeat)
        if views is None:
            views = self._views[pieces.repeat] = Views(pieces)
        return views

    def _opened(self, key: tuple[str, int], done: asyncio.Future[MappedArena]) -> None:
        self._opening.pop(key, None)
        if not done.cancelled() and done.exception() is None:
            self._mapped[key] = done.result()

    def _forget_abandoned(self, but: ArenaRef | None = None) -> None:
        for key, mapped in list(self._mapped.items()):
            if (but is None or key != (but.path, but.nonce)) and mapped.abandoned:
                del self._mapped[key]  # closed once the last read that still copies lets go of it


def _copy_all(
    mapped: MappedArena, pieces: Pieces, views: Views | None, verify: bool, stop: threading.Event
) -> None:
    if views is None:
        mapped.check_reach(pieces.regions, pieces.reach)
        for step in pieces.split(STEP_BYTES):
            if stop.is_set():
                return
            copy(mapped.memory, step)
    else:
        mapped.check_reach(pieces.regions, views.reach)
        for target, source in views.pairs(mapped, mapped.memory, pieces, STEP_BYTES):
            if stop.is_set():
                return
            np.copyto(target, source)
    if verify:
        hashed = _verified_blocks(pieces, views)
        for first in range(0, len(hashed), _BLOCKS_AT_ONCE):
            if stop.is_set():
                return
            _verify(mapped, pieces.regions, hashed[first : first + _BLOCKS_AT_ONCE])
    mapped.check(pieces.regions.slot, pieces.regions.generation)


def verify_pieces(mapped: MappedArena, pieces: Pieces) -> None:
    """Compares the blocks that the pieces touch, as they are now, with their digests, where there are any.

    Raises RegionGone, ChecksumMismatch.
    """
    _verify(mapped, pieces.regions, _verified_blocks(pieces, None))


def _verified_blocks(pieces: Pieces, views: Views | None) -> np.ndarray:
    """int64[B, 2]: (region, block) of every block that the pieces touch and that has a digest."""
    blocks = pieces.blocks() if views is None else views.blocks(pieces)
    return blocks[pieces.regions.verifiable[blocks[:, 0]]]


def _verify(mapped: MappedArena, regions: Regions, blocks: np.ndarray) -> None:
    digests = block_digests(mapped.memory, regions, blocks)
    # First: bytes of a region that is gone are of no use.
    mapped.check(regions.slot, regions.generation)
    expected = regions.expected(blocks)
    wrong = np.flatnonzero(digests != expected)
    if len(wrong):
        region, block = blocks[wrong[0]].tolist()
        where = f"{mapped.path} region {regions.slot[region]}"
        refuse_mismatch(int(expected[wrong[0]]), int(digests[wrong[0]]), block, where)
