"""Arenas on a GPU: `DeviceArena`, and `open_arena`, which makes the one that is configured.

```
region.tensor(…)  on the device ─ seal ─► the same offsets of the arena's file ◄── readers, by any transport
region.array(…)   straight in the file, as in every arena ──────────┘
```
In addition to its file, the arena has one slab of the device's memory, offset by offset: one allocator and
one table of generations serve both. No transport reads the device's memory yet, so sealing copies what was
written there into the file, whose mapping is registered with the driver once, so that the card writes it
directly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.regions import RegionRef
from earl.dispatch.memory.arena import Arena, Region
from earl.errors import ConfigError, LayoutError

if TYPE_CHECKING:
    import torch


def open_arena(
    config: DataPlaneConfig, directory: Path, owner: str, incarnation: int, size_bytes: int
) -> Arena:
    """An arena on `data_plane.arena_device`. Raises ConfigError when it is not there, or does not fit."""
    if config.arena_device == "cpu":
        return Arena.create(directory, owner, incarnation, size_bytes)
    device = cuda_device(config.arena_device)  # before there is anything to take back
    arena = DeviceArena.create(directory, owner, incarnation, size_bytes)
    try:
        arena.place(device)
    except BaseException:
        arena.close()
        raise
    return arena


def cuda_device(name: str) -> torch.device:
    """The device of a name such as "cuda:0". Raises ConfigError when torch has none like it."""
    remedy = 'set data_plane.arena_device = "cpu", or use a machine with that GPU and a CUDA build of torch'
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            f'data_plane.arena_device = "{name}", and torch is not installed', "install earl[stack]"
        ) from error
    if not torch.cuda.is_available():
        raise ConfigError(
            f'data_plane.arena_device = "{name}", and torch {torch.__version__} finds no CUDA device', remedy
        )
    device = torch.device(name)
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f'data_plane.arena_device = "{name}", and this machine has {torch.cuda.device_count()} of them',
            remedy,
        )
    return device


class DeviceRegion(Region):
    """A region that can be written on the device too; a byte is written in one of the two places."""

    _arena: DeviceArena

    def __init__(self, arena: DeviceArena, slot: int, offset_bytes: int, size_bytes: int) -> None:
        super().__init__(arena, slot, offset_bytes, size_bytes)
        # (start, stop) in the region of what was given out on the device.
        self._on_device: list[tuple[int, int]] = []

    def tensor(self, dtype: torch.dtype, shape: Sequence[int], offset: int = 0) -> torch.Tensor:
        """A tensor in the slab, `offset` bytes into the region. Raises LayoutError past its end, or before
        the arena has its device.
        """
        slab = self._arena.slab
        stop = offset + math.prod(shape) * dtype.itemsize
        if slab is None or offset < 0 or offset % dtype.itemsize or stop > self.size_bytes:
            raise LayoutError(
                f"tensor of {stop - offset} bytes at {offset} in a region of {self.size_bytes}",
                "allocate a larger region, align the offset, and give the arena its device",
            )
        self._on_device.append((offset, stop))
        start = self._arena.in_slab(self.offset_bytes)
        return slab[start + offset : start + stop].view(dtype).view(tuple(shape))

    def seal(self, checksum: bool) -> RegionRef:
        """Publishes the bytes as they are now, those on the device as the current stream leaves them."""
        if self.ref is None:
            self._arena.mirror([(self.offset_bytes + a, self.offset_bytes + b) for a, b in self._on_device])
        return super().seal(checksum)


class DeviceArena(Arena):
    """An arena with a slab on a device, once `place` gave it one. slab: uint8[capacity_bytes]."""

    slab: torch.Tensor | None = None
    _pinned = False

    def place(self, device: torch.device) -> None:
        """Allocates the slab and registers the file's mapping. Raises ConfigError when it does not fit."""
        import torch

        try:
            self.slab = torch.empty(self.capacity_bytes, dtype=torch.uint8, device=device)
            if device.type == "cuda":
                driver: Any = torch.cuda.cudart()
                with torch.cuda.device(device):
                    code = driver.cudaHostRegister(self.memory.ctypes.data, self.memory.nbytes, 0)
                    torch.cuda.check_error(int(code))
                self._pinned = True
        except RuntimeError as error:  # torch's and the driver's errors alike
            raise ConfigError(
                f"{self.ref.owner}: an arena of {self.capacity_bytes} bytes on {device}: {error}",
                'ask for a smaller arena, or set data_plane.arena_device = "cpu"',
            ) from error
        self.moved_to(str(device))

    def in_slab(self, offset_bytes: int) -> int:
        """The offset in the slab of a region at this offset of the file."""
        return offset_bytes - self.data_offset

    def mirror(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Copies these ranges, (start, stop) in the file, from the slab into it; waits for the device."""
        import torch

        for start, stop in ranges:
            assert self.slab is not None
            target = torch.from_numpy(self.memory[start:stop])
            target.copy_(self.slab[self.in_slab(start) : self.in_slab(stop)])

    def close(self) -> None:
        if self._pinned:
            import torch

            self._pinned = False
            driver: Any = torch.cuda.cudart()
            driver.cudaHostUnregister(self.memory.ctypes.data)
        super().close()

    def _region(self, slot: int, offset_bytes: int, size_bytes: int) -> Region:
        return DeviceRegion(self, slot, offset_bytes, size_bytes)
