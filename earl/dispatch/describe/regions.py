"""The places of published bytes: a worker's arena, a region of it, and arrays of many regions of an arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from earl.errors import LayoutError

CHECKSUM_BLOCK_BYTES = 1 << 20


@cache
def host_id() -> str:
    """Identifies this machine while it is up; the same in all its containers."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class ArenaRef:
    """A worker's memory and every way to reach it.

    ucx_address, nixl_address: host:port of its serving process, empty if that wire is not served.
    file_system: the number that the host gives the file system of `path`; 0 if it is not known.
    """

    owner: str
    incarnation: int
    path: str
    nonce: int
    size_bytes: int
    ucx_address: str
    device: str
    host: str
    nixl_address: str = ""
    file_system: int = 0


@dataclass(frozen=True, slots=True)
class RegionRef:
    """A published region. offset_bytes counts from the start of the arena's file.

    checksums: xxh3-64 of each block of checksum_block_bytes, the last one shorter; empty if none.
    """

    arena: ArenaRef
    slot: int
    generation: int
    offset_bytes: int
    size_bytes: int
    checksums: tuple[int, ...] = ()
    checksum_block_bytes: int = CHECKSUM_BLOCK_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """N published regions of one arena.

    slot, offset_bytes, size_bytes: int64[N], the offset from the start of the arena's file; generation:
    uint64[N]. first_checksum: int64[N + 1] into checksums: uint64[K], xxh3-64 of each block of block_bytes,
    a region's last one shorter; equal neighbours mean that the region has none.
    """

    slot: np.ndarray
    generation: np.ndarray
    offset_bytes: np.ndarray
    size_bytes: np.ndarray
    first_checksum: np.ndarray
    checksums: np.ndarray
    block_bytes: int = CHECKSUM_BLOCK_BYTES

    @classmethod
    def of(cls, refs: Sequence[RegionRef]) -> Regions:
        """Gathers regions of one arena. Raises LayoutError where their checksum blocks differ in size."""
        sizes = {ref.checksum_block_bytes for ref in refs if ref.checksums}
        if len(sizes) > 1:
            raise LayoutError(f"checksum blocks of {sorted(sizes)} bytes in one arena", "publish them again")
        words = [(ref.slot, ref.offset_bytes, ref.size_bytes, len(ref.checksums)) for ref in refs]
        slot, offset_bytes, size_bytes, counts = np.array(words, np.int64).reshape(-1, 4).T
        first_checksum = np.zeros(len(refs) + 1, np.int64)
        counts.cumsum(out=first_checksum[1:])
        return cls(
            slot,
            np.array([ref.generation for ref in refs], np.uint64),
            offset_bytes,
            size_bytes,
            first_checksum,
            np.array([digest for ref in refs for digest in ref.checksums], np.uint64),
            sizes.pop() if sizes else CHECKSUM_BLOCK_BYTES,
        )

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def verifiable(self) -> np.ndarray:
        """bool[N]: whether a region has checksums."""
        return self.first_checksum[1:] > self.first_checksum[:-1]

    def expected(self, blocks: np.ndarray) -> np.ndarray:
        """uint64[B]: the published digests of blocks, int64[B, 2] of (region, block), which exist."""
        return self.checksums[self.first_checksum[blocks[:, 0]] + blocks[:, 1]]

    def checksum(self, region: int, block: int) -> int:
        """The published digest of one block. Raises LayoutError if there is none."""
        index = int(self.first_checksum[region]) + block
        if block < 0 or index >= self.first_checksum[region + 1]:
            raise LayoutError(f"region {region} has no checksum of block {block}", "publish it again")
        return int(self.checksums[index])
