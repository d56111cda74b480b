"""Arenas: allocation, generations, lives of owners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.regions import Regions
from earl.dispatch.memory import arena_file
from earl.dispatch.memory.arena import Arena, MappedArena
from earl.dispatch.transport.shm import SharedMemory
from earl.errors import (
    ArenaFull,
    ConfigError,
    LayoutError,
    RegionGone,
    TransportUnavailable,
)
from earl.stack.plan import ProcessSpec
from earl.stack.process import StackProcess


@pytest.fixture
def arena(tmp_path: Path):
    arena = Arena.create(tmp_path / "arenas", "o", 1, 1 << 20)
    yield arena
    arena.close()


def check(mapped: MappedArena, slot: int, generation: int) -> None:
    mapped.check(np.array([slot]), np.array([generation], np.uint64))


def test_a_full_arena_is_back_pressure(arena: Arena):
    whole = arena.allocate(arena.capacity_bytes)
    with pytest.raises(ArenaFull, match="no space for 1 bytes"):
        arena.allocate(1)
    whole.free()
    whole.free()
    assert arena.free_bytes == arena.capacity_bytes
    arena.allocate(arena.capacity_bytes)


def test_a_full_slot_table_is_back_pressure_that_says_so(arena: Arena):
    regions = [arena.allocate(0) for _ in range(arena_file.MIN_SLOTS)]
    assert arena.largest_bytes == 0 < arena.free_bytes
    with pytest.raises(ArenaFull, match="all 1024 regions of the arena are in use, with 983040 of 1048576"):
        arena.allocate(1)
    regions[0].free()
    assert arena.largest_bytes > 0
    arena.allocate(1)


def on_disk(arena: Arena) -> int:
    return os.stat(arena.ref.path).st_blocks * 512


def test_an_arena_takes_memory_as_its_regions_need_it(tmp_path: Path):
    arena = Arena.create(tmp_path / "arenas", "o", 1, 1 << 20, grows_to=64 << 20)
    try:
        before = on_disk(arena)
        assert before < 4 << 20 and arena.capacity_bytes == arena.free_bytes >= 64 << 20
        mapped = MappedArena(arena.ref.path, arena.ref.nonce, 1)
        assert on_disk(arena) == before  # a reader populates what is there, and allocates nothing
        region = arena.allocate(40 << 20)
        region.array(np.uint8, (40 << 20,))[:] = 7
        ref = region.seal(checksum=False)
        assert (mapped.memory[ref.offset_bytes : ref.offset_bytes + ref.size_bytes] == 7).all()
        assert 40 << 20 < on_disk(arena) < 50 << 20
        arena.allocate(arena.largest_bytes)
        with pytest.raises(ArenaFull, match="no space for"):
            arena.allocate(4 << 20)
    finally:
        arena.close()


def test_a_file_system_that_is_full_is_back_pressure(tmp_path: Path):
    arena = Arena.create(tmp_path / "arenas", "o", 1, 1 << 20, grows_to=4 << 40)
    try:
        free = arena.free_bytes
        with pytest.raises(ArenaFull, match=r"has no more than the \d+ allocated"):
            arena.allocate(3 << 40)
        assert arena.free_bytes == free
        arena.allocate(4 << 20)
    finally:
        arena.close()


def test_a_reopened_region_keeps_its_bytes_and_no_reader(arena: Arena):
    region = arena.allocate(64)
    region.array(np.uint8, (64,))[:] = 7
    ref = region.seal(checksum=True)
    mapped = MappedArena(arena.ref.path, arena.ref.nonce, 1)
    region.reopen()
    with pytest.raises(RegionGone, match="generation"):
        check(mapped, ref.slot, ref.generation)
    region.array(np.uint8, (64,))[0] = 8
    again = region.seal(checksum=True)
    check(mapped, again.slot, again.generation)
    assert (again.slot, again.offset_bytes) == (ref.slot, ref.offset_bytes) and again != ref
    assert mapped.memory[again.offset_bytes :][:2].tolist() == [8, 7]
    region.free()
    with pytest.raises(RegionGone, match="freed"):
        region.reopen()


def test_generations_follow_a_region(arena: Arena):
    mapped = MappedArena(arena.ref.path, arena.ref.nonce, 1)
    region = arena.allocate(1000)
    region.array(np.uint8, (1000,))[:] = 7
    with pytest.raises(RegionGone):
        check(mapped, 0, 0)  # allocated, not sealed
    ref = region.seal(checksum=True)
    (offset,), (size,) = mapped.extents(np.array([ref.slot]), np.array([ref.generation], np.uint64))
    assert (offset, size) == (ref.offset_bytes, 1000)
    assert (mapped.memory[offset : offset + 1000] == 7).all()
    with pytest.raises(ValueError):
        mapped.memory[ref.offset_bytes] = 1  # readers map read-only
    regions = Regions.of([ref])
    assert mapped.digests(regions, [(0, 0)]) == [regions.checksum(0, 0)]
    region.free()
    with pytest.raises(RegionGone):
        check(mapped, ref.slot, ref.generation)
    again = arena.allocate(1000).seal(checksum=False)
    assert again.slot == ref.slot and again.generation != ref.generation
    for slot in (-1, 1 << 40):
        with pytest.raises(RegionGone):
            check(mapped, slot, 1)
    mapped.close()


def test_a_freed_region_cannot_be_sealed_even_if_its_slot_is_used_again(arena: Arena):
    old = arena.allocate(100)
    old.free()
    new = arena.allocate(100)
    with pytest.raises(RegionGone, match="freed"):
        old.seal(checksum=False)
    mapped = MappedArena(arena.ref.path, arena.ref.nonce, 1)
    ref = new.seal(checksum=False)
    check(mapped, ref.slot, ref.generation)
    mapped.close()


def test_a_region_bounds_its_arrays(arena: Arena):
    region = arena.allocate(100)
    region.array(np.float32, (25,))
    with pytest.raises(LayoutError, match="104 bytes at 0"):
        region.array(np.float32, (26,))
    with pytest.raises(LayoutError):
        region.array(np.uint8, (1,), offset=100)


def test_closing_removes_file_and_directory(tmp_path: Path):
    directory = tmp_path / "arenas"
    one, two = (Arena.create(directory, name, 1, 4096) for name in ("one", "two"))
    mapped = MappedArena(one.ref.path, one.ref.nonce, 1)
    ref = one.allocate(10).seal(checksum=False)
    one.close()
    one.close()
    assert mapped.abandoned
    with pytest.raises(RegionGone):
        check(mapped, ref.slot, ref.generation)
    assert directory.exists()
    two.close()
    assert not directory.exists()


def open_files(path: Path) -> list[str]:
    """Descriptors and mappings of this process, of a file that may be removed."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in (*links, *mapped) if str(path) in line]


async def test_a_reader_lets_go_of_removed_arenas(tmp_path: Path):
    transport = SharedMemory()
    one, two = (Arena.create(tmp_path / "arenas", name, 1, 4096) for name in ("one", "two"))
    held = (await transport.open(one.ref)).memory[:8]
    one.close()
    path = Path(one.ref.path)
    del one
    assert open_files(path)
    await transport.open(two.ref)
    assert bytes(held) == b"EARLARN1"  # who still reads it may finish
    del held
    assert not open_files(path)
    await transport.close()
    two.close()


def test_another_file_is_refused(arena: Arena, tmp_path: Path):
    with pytest.raises(RegionGone, match="is gone"):
        MappedArena(str(tmp_path / "none.arena"), 1, 1)
    with pytest.raises(RegionGone, match="incarnation"):
        MappedArena(arena.ref.path, arena.ref.nonce ^ 1, 1)
    with pytest.raises(RegionGone, match="incarnation"):
        MappedArena(arena.ref.path, arena.ref.nonce, 2)
    junk = tmp_path / "junk"
    for content in (b"", b"EARLARN1", os.urandom(9000)):
        junk.write_bytes(content)
        with pytest.raises(RegionGone, match="no arena"):
            MappedArena(str(junk), 1, 1)


def test_what_is_no_file_is_refused_and_blocks_nobody(tmp_path: Path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, kind in ((fifo, "a FIFO"), (Path("/dev/zero"), "a device"), (tmp_path, "a directory")):
        with pytest.raises(RegionGone, match=kind):
            MappedArena(str(path), 1, 1)
    for path in ("/proc/kmsg", "/proc/self/mem", "/dev/shm/\0", "/dev/zero/x"):
        with pytest.raises((RegionGone, TransportUnavailable)):
            MappedArena(path, 1, 1)


def test_an_arena_on_another_file_system_is_not_taken_for_one_that_is_gone(arena: Arena, tmp_path: Path):
    ref = arena.ref
    assert ref.file_system == os.stat(ref.path).st_dev
    missing = str(tmp_path / "gone" / "o.arena")
    with pytest.raises(RegionGone, match="its owner ended"):
        MappedArena(missing, ref.nonce, 1, ref.file_system)
    with pytest.raises(TransportUnavailable, match=r"does not share .*data_plane\.bind"):
        MappedArena(missing, ref.nonce, 1, os.stat("/proc").st_dev)


def test_an_arena_that_was_truncated_is_refused(arena: Arena):
    region = arena.allocate(5000)
    ref = region.seal(checksum=True)
    mapped = MappedArena(arena.ref.path, arena.ref.nonce, 1)
    check(mapped, ref.slot, ref.generation)
    os.truncate(arena.ref.path, 4096)
    for read in (
        lambda: check(mapped, ref.slot, ref.generation),
        lambda: mapped.check_reach(Regions.of([ref]), np.array([10])),
        lambda: MappedArena(arena.ref.path, arena.ref.nonce, 1),
    ):
        with pytest.raises(RegionGone, match=r"truncated to 4096 of|no arena"):
            read()
    os.truncate(arena.ref.path, arena.ref.size_bytes)
    mapped.close()


# Reads a byte of an arena that is no longer there, as a copy does under which the file was truncated.
TRUNCATED = """
import os, sys
from pathlib import Path
from earl.dispatch.memory.arena import Arena, MappedArena
arena = Arena.create(Path(sys.argv[1]), "victim", 1, 1 << 20)
mapped = MappedArena(arena.ref.path, arena.ref.nonce, 1)
os.truncate(arena.ref.path, 4096)
print(mapped.reading(lambda: mapped.memory[-1]))
"""


def test_a_process_that_a_truncation_ends_names_the_arena(tmp_path: Path):
    ended = subprocess.run(
        [sys.executable, "-c", TRUNCATED, str(tmp_path / "arenas")], capture_output=True, text=True
    )
    assert ended.returncode == -signal.SIGBUS
    assert "Bus error" in ended.stderr
    named = f"<reads the arena {tmp_path}/arenas/victim-0000000000000001.arena>"
    assert named in ended.stderr
    # A launcher reports the line that names the arena.
    log = tmp_path / "log"
    log.write_text(ended.stderr)
    failure = StackProcess(ProcessSpec("rollout-0", ()), log).failure(-signal.SIGBUS, "while it read")
    assert "rollout-0 was ended by SIGBUS" in failure.message and named in failure.message


def test_padding_is_cleared_behind_each_array(arena: Arena):
    region = arena.allocate(256)
    region.array(np.uint8, (256,))[:] = 1
    region.clear_padding(64, 2, 64, 60)
    held = region.array(np.uint8, (256,))
    assert np.flatnonzero(held == 0).tolist() == [*range(124, 128), *range(188, 192)]


def test_only_dead_owners_files_are_removed(tmp_path: Path):
    directory = tmp_path / "arenas"
    living = Arena.create(directory, "living", 1, 4096)
    script = (
        "import os, sys; from pathlib import Path; from earl.dispatch.memory.arena import Arena;"
        f"Arena.create(Path({str(directory)!r}), 'dead', 1, 4096); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert len(list(directory.iterdir())) == 2
    assert arena_file.remove_stale(directory) == [directory / "dead-0000000000000001.arena"]
    assert Path(living.ref.path).exists()
    with pytest.raises(ConfigError, match="exists"):
        Arena.create(directory, "living", 1, 4096)
    living.close()


def test_too_small_a_file_system_is_said(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"does not fit .* free; make the tmpfs larger"):
        Arena.create(tmp_path / "arenas", "huge", 1, 1 << 50)
    assert not list((tmp_path / "arenas").iterdir())


def test_the_arena_directory_is_the_runs_own(tmp_path: Path):
    config = DataPlaneConfig()
    one = arena_file.arena_directory(config, tmp_path / "runs" / "a")
    assert one == arena_file.arena_directory(config, tmp_path / "x" / ".." / "runs" / "a")
    assert one != arena_file.arena_directory(config, tmp_path / "runs2" / "a")
    assert one.parent == Path("/dev/shm") and one.name.startswith("earl-a-")
