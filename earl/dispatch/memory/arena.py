"""Registered memory of a worker: `Arena` for its owner, `MappedArena` for its readers.

The owner allocates regions, writes them in place, seals (publishes) and frees them. A reader maps
the same file read-only, after checking that its nonce is the descriptor's.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from earl.dispatch.describe.regions import ArenaRef, RegionRef, Regions, host_id
from earl.dispatch.memory import arena_file, last_words
from earl.dispatch.memory.allocator import Slabs
from earl.dispatch.memory.arena_file import SLOT_WORDS, Header
from earl.dispatch.memory.digests import block_digests, region_digests
from earl.dispatch.memory.open_arena import open_arena
from earl.errors import ArenaFull, LayoutError, RegionGone

_GENERATION, _OFFSET, _SIZE = 0, 1, 2
# Odd generations are of published regions.
_PUBLISHED = np.uint64(1)
# An arena that may grow takes so much more of its file system at once.
_GROWTH_BYTES = 16 << 20
# How much is touched between two chances for other threads.
_TOUCHED_BYTES = 64 << 20
T = TypeVar("T")


class Region:
    """A lease on part of an arena: write it through `array`, then `seal`, later `free`."""

    def __init__(self, arena: Arena, slot: int, offset_bytes: int, size_bytes: int) -> None:
        self._arena = arena
        self._slot = slot
        self.offset_bytes = offset_bytes
        self.size_bytes = size_bytes
        self.ref: RegionRef | None = None

    def array(self, dtype: np.dtype | type, shape: Sequence[int], offset: int = 0) -> np.ndarray:
        """A writable array in the arena, `offset` bytes into the region. Raises LayoutError past its end."""
        dtype = np.dtype(dtype)
        size_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if offset < 0 or offset + size_bytes > self.size_bytes:
            raise LayoutError(
                f"array of {size_bytes} bytes at {offset} in a region of {self.size_bytes}",
                "allocate a larger region",
            )
        return np.ndarray(tuple(shape), dtype, self._arena.memory, self.offset_bytes + offset)

    def clear_padding(self, offset: int, count: int, step: int, size_bytes: int) -> None:
        """Zeroes what lies behind each of `count` arrays of so many bytes, `step` apart from `offset` on.

        So that regions of equal arrays have equal digests.
        """
        if count and size_bytes < step:
            places = self.array(np.uint8, (count, step), offset)
            places[:, size_bytes:] = 0

    def seal(self, checksum: bool) -> RegionRef:
        """Publishes the bytes as they are now: from here on readers may copy them."""
        if self.ref is None:
            checksums = ()
            if checksum:
                checksums = region_digests(self.array(np.uint8, (self.size_bytes,)))
            self.ref = self._arena._publish(self._slot, self, checksums)
        return self.ref

    def reopen(self) -> None:
        """Withdraws what was published, as `free` does, but keeps region and bytes, to be sealed again."""
        self._arena._withdraw(self._slot, self)
        self.ref = None

    def free(self) -> None:
        """Ends the lease: later reads are refused, and reads in progress fail. Freeing twice is harmless."""
        self._arena._free(self._slot, self)


class Arena:
    """An owner's memory. Allocation and freeing are thread-safe; `close` removes the file.

    allocated_bytes: of the file, from its start; regions beyond them allocate what they need first.
    """

    def __init__(self, path: Path, fd: int, owner: str, header: Header, allocated_bytes: int) -> None:
        self._fd = fd
        self._path = path
        self._header = header
        self._allocated_bytes = allocated_bytes
        flags, access = mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
        self._map = mmap.mmap(fd, header.size_bytes, flags=flags, prot=access)
        self.memory = np.frombuffer(self._map, np.uint8)
        for pages in _pages(self.memory[:allocated_bytes]):
            np.bitwise_or(pages, 0, out=pages)
        self._map[: len(header.pack())] = header.pack()
        self._table = _table(self._map, header)
        self._space = Slabs(header.data_offset, header.size_bytes)
        self._free_slots = list(range(header.slots - 1, -1, -1))
        self._live: dict[int, Region] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.ref = ArenaRef(
            owner,
            header.incarnation,
            str(path),
            header.nonce,
            header.size_bytes,
            "",
            "cpu",
            host_id(),
            file_system=os.fstat(fd).st_dev,
        )

    @classmethod
    def create(
        cls, directory: Path, owner: str, incarnation: int, size_bytes: int, grows_to: int = 0
    ) -> Self:
        """A new arena with `size_bytes` for regions, allocated and touched; dead owners' files go.

        grows_to: bytes that regions may take in all, allocated as they are needed; at least size_bytes.
        Raises ConfigError when the file system is too small or the file exists.
        """
        arena_file.ensure_directory(directory)
        arena_file.remove_stale(directory)
        most = max(size_bytes, grows_to)
        header = arena_file.header_for(most, secrets.randbits(64), incarnation)
        allocated = header.data_offset + arena_file.in_pages(size_bytes)
        path = arena_file.arena_path(directory, owner, incarnation)
        return cls(path, arena_file.create(path, header.size_bytes, allocated), owner, header, allocated)

    @property
    def free_bytes(self) -> int:
        with self._lock:
            return self._space.free_bytes

    @property
    def largest_bytes(self) -> int:
        """The size of the largest region that fits now."""
        with self._lock:
            return self._space.largest_bytes if self._free_slots else 0

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the file that take memory."""
        return self._allocated_bytes

    @property
    def capacity_bytes(self) -> int:
        """The value of `free_bytes` when nothing is allocated, with all that the arena may grow by."""
        return self._header.size_bytes - self._header.data_offset

    def served_at(self, *, ucx_address: str = "", nixl_address: str = "") -> None:
        """Name the serving process's address in what is published from now on."""
        self.ref = replace(self.ref, ucx_address=ucx_address, nixl_address=nixl_address)

    @property
    def data_offset(self) -> int:
        """Returns where the first region may begin, in bytes from the start of the file."""
        return self._header.data_offset

    def allocate(self, size_bytes: int) -> Region:
        """A region of this size, its bytes undefined. Raises ArenaFull when it does not fit now."""
        if size_bytes < 0:
            raise LayoutError(f"a region of {size_bytes} bytes", "allocate 0 bytes or more")
        with self._lock:
            if self._closed:
                raise ArenaFull(f"{self.ref.owner}: the arena is closed", "make a new one")
            if not self._free_slots:
                raise ArenaFull(
                    f"{self.ref.owner}: all {self._header.slots} regions of the arena are in use, with "
                    f"{self._space.free_bytes} of {self.capacity_bytes} bytes free",
                    "wait until readers have consumed regions, or put more into each",
                )
            offset = self._space.take(size_bytes)
            if offset is None:
                raise ArenaFull(
                    f"{self.ref.owner}: no space for {size_bytes} bytes besides {len(self._live)} regions; "
                    f"{self._space.free_bytes} free, at most {self._space.largest_bytes} in one piece",
                    "wait until readers have consumed regions, or make the arena larger",
                )
            if not self._reach(offset + size_bytes):
                self._space.give(offset)
                raise ArenaFull(
                    f"{self.ref.owner}: no space for {size_bytes} bytes besides {len(self._live)} regions; "
                    f"{self._path.parent} has no more than the {self._allocated_bytes} allocated",
                    "wait until readers have consumed regions, or make the tmpfs larger",
                )
            slot = self._free_slots.pop()
            region = self._live[slot] = Region(self, slot, offset, size_bytes)
            return region

    def _reach(self, stop: int) -> bool:
        """Allocates the file up to `stop` at least; returns whether its file system has the bytes."""
        if stop <= self._allocated_bytes:
            return True
        generous = min(self._header.size_bytes, max(stop, self._allocated_bytes + _GROWTH_BYTES))
        for end in (generous, arena_file.in_pages(stop)):
            if arena_file.extend(self._fd, self._allocated_bytes, end):
                self._allocated_bytes = end
                return True
        return False

    def close(self) -> None:
        """Frees every region and removes the file. Arrays handed out stay valid memory, unread by others."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for slot in list(self._live):
                self._retire(slot)
            self._live.clear()
        arena_file.remove(self._path)
        os.close(self._fd)

    def _publish(self, slot: int, region: Region, checksums: tuple[int, ...]) -> RegionRef:
        with self._lock:
            # The slot may be another region's by now.
            if self._live.get(slot) is not region:
                raise RegionGone(f"{self.ref.owner}: sealing a freed region", "allocate a new one")
            row = self._table[slot]
            row[_OFFSET], row[_SIZE] = region.offset_bytes, region.size_bytes
            row[_GENERATION] += np.uint64(1)  # odd: published
            generation = int(row[_GENERATION])
        return RegionRef(self.ref, slot, generation, region.offset_bytes, region.size_bytes, checksums)

    def _free(self, slot: int, region: Region) -> None:
        with self._lock:
            if self._closed or self._live.get(slot) is not region:
                return
            self._retire(slot)
            del self._live[slot]
            self._space.give(region.offset_bytes)
            self._free_slots.append(slot)

    def _withdraw(self, slot: int, region: Region) -> None:
        with self._lock:
            if self._closed or self._live.get(slot) is not region:
                raise RegionGone(f"{self.ref.owner}: reopening a freed region", "allocate a new one")
            self._retire(slot)

    def _retire(self, slot: int) -> None:
        if int(self._table[slot, _GENERATION]) & 1:
            self._table[slot, _GENERATION] += np.uint64(1)  # even: not published


class MappedArena:
    """Another process's arena, read-only. Dropping the last reference closes it."""

    _fd = -1

    def __init__(self, path: str, nonce: int, incarnation: int, file_system: int = 0) -> None:
        """Maps the file. file_system: that its owner names; 0 if it names none.

        Raises RegionGone when it is gone or another's, TransportUnavailable when it is barred or not shared
        with this process.
        """
        fd, self._header, file_bytes = open_arena(path, nonce, incarnation, file_system)
        try:
            self._map = mmap.mmap(fd, file_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except ValueError:  # it became shorter since it was opened
            os.close(fd)
            raise RegionGone(f"arena {path} was truncated", "its owner must publish again") from None
        except BaseException:
            os.close(fd)
            raise
        self.path = path
        self.nonce = nonce
        self._fd = fd
        self._table = _table(self._map, self._header)
        self.memory = np.frombuffer(self._map, np.uint8)
        last_words.enable()
        self.reading(self._populate)

    def _populate(self) -> None:
        for pages in _pages(self.memory[: arena_file.allocated_prefix(self._fd)]):
            pages.max()

    def reading(self, work: Callable[..., T], *args: Any) -> T:
        """work(*args), which touches the arena's memory: if that ends the process, its stack names the arena.

        What truncates an arena while it is read ends its readers by SIGBUS; a truncation before that is
        RegionGone.
        """
        return last_words.named_call(self.path)(work, *args)

    def _refuse_truncated(self) -> None:
        size_bytes = os.fstat(self._fd).st_size
        if size_bytes < self._header.size_bytes:
            raise RegionGone(
                f"arena {self.path} was truncated to {size_bytes} of {self._header.size_bytes} bytes",
                "its owner must publish again; stop what writes to files there",
            )

    @property
    def abandoned(self) -> bool:
        """True once the owner, or who cleaned up after it, removed the file."""
        return os.fstat(self._fd).st_nlink == 0

    def check(self, slots: np.ndarray, generations: np.ndarray) -> None:
        """Raises RegionGone unless each slot (int64[N]) holds its generation (uint64[N]), published, now."""
        self._refuse_truncated()
        known, rows = self._known(slots)
        actual = self._table[rows, _GENERATION]
        good = known & (actual == generations) & (generations & _PUBLISHED).astype(bool)
        if not good.all():
            bad = int(np.flatnonzero(~good)[0])
            raise RegionGone(
                f"region {slots[bad]} of {self.path} is at generation {actual[bad]}, not {generations[bad]}",
                "it was freed or reused; read a newer descriptor",
            )

    def extents(self, slots: np.ndarray, generations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(offsets, sizes), int64[N] bytes, of published regions, within the file. Raises RegionGone."""
        self._refuse_truncated()
        _, rows = self._known(slots)
        words = self._table[rows].astype(np.int64)
        offsets, sizes = words[:, _OFFSET], words[:, _SIZE]
        # A generation only grows: one that is still there was there when its extent was read.
        self.check(slots, generations)
        outside = (offsets < self._header.data_offset) | (sizes < 0)
        outside |= sizes > self._header.size_bytes - offsets
        if outside.any():
            slot = slots[np.flatnonzero(outside)[0]]
            raise RegionGone(f"region {slot} of {self.path} leaves its arena", "its owner is faulty")
        return offsets, sizes

    def _known(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(bool[N], whether there is such a slot; int64[N], the slot's row of the table, or another one)."""
        rows = slots % self._header.slots
        return rows == slots, rows

    def check_reach(self, regions: Regions, reach: np.ndarray) -> None:
        """Raises RegionGone unless every region lies where it was published, and is no shorter than `reach`.

        reach: int64[N], how many bytes of each region are read, from its start.
        """
        offsets, sizes = self.extents(regions.slot, regions.generation)
        moved = np.flatnonzero(offsets != regions.offset_bytes)
        if len(moved):
            slot = regions.slot[moved[0]]
            raise RegionGone(f"region {slot} of {self.path} lies elsewhere", "read a newer descriptor")
        self.refuse_beyond(regions.slot, sizes, reach)

    def refuse_beyond(self, slots: np.ndarray, sizes: np.ndarray, reach: np.ndarray) -> None:
        """Raises RegionGone where a slot's region is shorter than what is read of it.

        slots: int64[N]. sizes, reach: int64[N], bytes.
        """
        beyond = reach > sizes
        if beyond.any():
            first = int(np.argmax(beyond))
            raise RegionGone(
                f"region {slots[first]} of {self.path}: {sizes[first]} bytes, not {reach[first]}",
                "read a newer descriptor",
            )

    def digests(self, regions: Regions, blocks: Iterable[tuple[int, int]]) -> list[int]:
        """xxh3-64 of checksum blocks, each (region, block), as the bytes are now."""
        table = np.array(list(blocks), np.int64).reshape(-1, 2)
        return block_digests(self.memory, regions, table).tolist()

    def close(self) -> None:
        """Gives up the file; the mapping ends when the last array over it does."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            del self.memory, self._table, self._map

    def __del__(self) -> None:
        # A file descriptor left open would keep the memory of an arena whose owner removed it.
        self.close()


def _pages(memory: np.ndarray) -> Iterator[np.ndarray]:
    """A byte of every page, some MiB at a time, to populate them: all in one call would hold the GIL."""
    for start in range(0, len(memory), _TOUCHED_BYTES):
        yield memory[start : start + _TOUCHED_BYTES : arena_file.PAGE_BYTES]


def _table(mapped: mmap.mmap, header: Header) -> np.ndarray:
    words = np.frombuffer(mapped, np.uint64, header.slots * SLOT_WORDS, header.table_offset)
    return words.reshape(header.slots, SLOT_WORDS)
