"""A version of weights where it lies: arenas that this process maps, and what is to be copied out of them.

    map ─► reader copies, wherever to ─► confirm: still published ─► what was copied is the version
                                              └─ a region was freed meanwhile: VersionGone

Nothing is copied before the reader has a place for it, so that a reader needs no memory of its own for a
version. An owner changes a region's generation before it writes there again: what was copied while the
generation stayed the same is what was published.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from earl.dispatch.describe.pieces import Pieces
from earl.dispatch.memory.allocator import rounded
from earl.dispatch.memory.arena import MappedArena
from earl.dispatch.transport.shm import verify_pieces
from earl.errors import RegionGone, VersionGone

# Linux's value; Python names it from 3.13 on.
_MAP_NORESERVE = 0x4000


class Outline:
    """Arrays that have an address and no memory: reads are planned for them, and nothing is written there.

    arrays: by name, with these shapes and dtypes.
    """

    def __init__(self, forms: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> None:
        self._names: list[str] = list(forms)
        self._starts: list[int] = []
        size_bytes = 0
        for shape, dtype in forms.values():
            self._starts.append(size_bytes)
            size_bytes += rounded(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._space = np.frombuffer(mmap.mmap(-1, max(1, size_bytes), flags=flags), np.uint8)
        self.arrays: dict[str, np.ndarray] = {
            name: np.ndarray(shape, dtype, self._space, start)
            for (name, (shape, dtype)), start in zip(forms.items(), self._starts, strict=True)
        }

    def places(self, pieces: Pieces) -> Iterator[tuple[str, int]]:
        """The array that each piece is for, and the byte of it that the piece begins at."""
        first = _address(self._space)
        addresses = np.array([_address(buffer) for buffer in pieces.buffers], np.int64)
        for offset in (addresses[pieces.buffer] - first + pieces.target_offset).tolist():
            number = bisect_right(self._starts, offset) - 1
            yield self._names[number], offset - self._starts[number]


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@dataclass(frozen=True, slots=True, eq=False)
class MappedPart:
    """Pieces of one owner's arena that are to be copied, in order.

    pieces: not for a transport to read; what they are to be copied into may be an Outline.
    """

    owner: str
    arena: MappedArena
    pieces: tuple[Pieces, ...]

    def check(self) -> None:
        """Raises RegionGone if what is to be copied is not there any more, or lies elsewhere."""
        for pieces in self.pieces:
            self.arena.reading(self.arena.check_reach, pieces.regions, pieces.reach)

    def confirm(self, verify: bool) -> None:
        """Raises RegionGone, and ChecksumMismatch if it verifies, unless the bytes are still those that were
        published."""
        for pieces in self.pieces:
            if verify:
                self.arena.reading(verify_pieces, self.arena, pieces)
            self.arena.check(pieces.regions.slot, pieces.regions.generation)


@dataclass(frozen=True, slots=True, eq=False)
class MappedVersion:
    """The slices of a version in mapped arenas. verify: `confirm` compares digests too."""

    parts: tuple[MappedPart, ...]
    verify: bool

    @property
    def size_bytes(self) -> int:
        return sum(pieces.size_bytes for part in self.parts for pieces in part.pieces)

    def check(self) -> None:
        """Raises VersionGone if the version is not there any more."""
        for part in self.parts:
            with _naming_owner(part):
                part.check()

    def confirm(self) -> None:
        """Returns if what was copied until now is the version. Raises VersionGone, ChecksumMismatch."""
        for part in self.parts:
            with _naming_owner(part):
                part.confirm(self.verify)


@contextmanager
def _naming_owner(part: MappedPart) -> Iterator[None]:
    try:
        yield
    except RegionGone as error:
        raise VersionGone(f"weights of {part.owner}: {error.message}", "take the newer version") from error
