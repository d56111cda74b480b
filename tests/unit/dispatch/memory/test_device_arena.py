"""Arenas on a device: everything but the driver's two calls, with the CPU in the place of the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.memory.arena import Arena, MappedArena
from earl.dispatch.memory.device_arena import DeviceArena, DeviceRegion, open_arena
from earl.errors import ArenaFull, ConfigError, LayoutError, RegionGone

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[DeviceArena]:
    arena = DeviceArena.create(tmp_path / "arenas", "o", 1, 1 << 20)
    arena.place(torch.device("cpu"))
    yield arena
    arena.close()


def leased(arena: DeviceArena, size_bytes: int) -> DeviceRegion:
    region = arena.allocate(size_bytes)
    assert isinstance(region, DeviceRegion)
    return region


def test_what_is_written_on_the_device_is_read_from_the_file_once_sealed(arena: DeviceArena):
    leased(arena, 5000)  # so that the region does not begin where the slab does
    region = leased(arena, 1024)
    region.array(np.int32, (64,))[:] = np.arange(64)
    values = torch.arange(128, dtype=torch.float32).reshape(8, 16)
    region.tensor(torch.float32, (8, 16), offset=256).copy_(values)
    region.tensor(torch.bfloat16, (4,), offset=768).fill_(1.0)
    assert not region.array(np.float32, (8, 16), 256).any()
    ref = region.seal(checksum=True)
    mapped = MappedArena(arena.ref.path, arena.ref.nonce, 1)
    at = mapped.memory[ref.offset_bytes : ref.offset_bytes + 1024]
    assert (at[:256].view(np.int32) == np.arange(64)).all()
    assert (at[256:768].view(np.float32).reshape(8, 16) == values.numpy()).all()
    assert (at[768:776].view(np.uint16) == 0x3F80).all()
    # Sealed once: what the device writes afterwards is not published.
    region.tensor(torch.float32, (8, 16), offset=256).zero_()
    assert region.seal(checksum=True) is ref and at[256:768].any()
    mapped.close()


def test_regions_and_generations_are_those_of_any_arena(arena: DeviceArena):
    whole = leased(arena, arena.capacity_bytes)
    whole.tensor(torch.uint8, (arena.capacity_bytes,)).fill_(7)
    with pytest.raises(ArenaFull):
        arena.allocate(1)
    ref = whole.seal(checksum=False)
    mapped = MappedArena(arena.ref.path, arena.ref.nonce, 1)
    slots, generations = np.array([ref.slot]), np.array([ref.generation], np.uint64)
    mapped.check(slots, generations)
    assert (mapped.memory[ref.offset_bytes :] == 7).all()
    whole.free()
    with pytest.raises(RegionGone):
        mapped.check(slots, generations)
    assert arena.free_bytes == arena.capacity_bytes
    mapped.close()


def test_a_region_bounds_its_tensors(arena: DeviceArena):
    region = leased(arena, 100)
    region.tensor(torch.float32, (25,))
    for shape, offset in (((26,), 0), ((1,), 100), ((1,), -4), ((1,), 2)):
        with pytest.raises(LayoutError, match="in a region of 100"):
            region.tensor(torch.float32, shape, offset)


def test_without_a_device_a_region_has_no_tensors(tmp_path: Path):
    arena = DeviceArena.create(tmp_path, "o", 1, 4096)
    with pytest.raises(LayoutError, match="give the arena its device"):
        leased(arena, 64).tensor(torch.uint8, (1,))
    arena.close()


def test_the_default_is_an_arena_without_a_device(tmp_path: Path):
    arena = open_arena(DataPlaneConfig(), tmp_path, "o", 1, 4096)
    assert type(arena) is Arena and arena.ref.device == "cpu"
    arena.close()


@without_cuda
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_made(tmp_path: Path):
    config = DataPlaneConfig(arena_device="cuda:0")
    with pytest.raises(ConfigError, match=r'arena_device = "cuda:0", and torch .* finds no CUDA device; set'):
        open_arena(config, tmp_path / "arenas", "o", 1, 4096)
    assert not (tmp_path / "arenas").exists()


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cpu:0", ""])
def test_what_is_no_device_is_refused_with_the_run_file(name: str):
    with pytest.raises(ValidationError):
        DataPlaneConfig(arena_device=name)
