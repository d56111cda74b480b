"""Shared memory between real processes: who has a handle has the memory, or is told that it cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from earl.shm import RegionHandle, SharedRegion, new_memory

SIZE_BYTES = 100
# Says its handle, then ends as it is told: "leave" ends sharing first.
OWNER = """
import sys
from earl.shm import SharedRegion
region = SharedRegion.create("earl-departing-owner", int(sys.argv[1]))
region.data[:5] = b"owner"
print(region.handle.encode().decode(), flush=True)
if sys.stdin.readline() == "end\\n":
    region.end_sharing()
    print("ended", flush=True)
sys.stdin.readline()
assert bytes(region.data[5:9]) == b"peer"
"""


def owner() -> tuple[subprocess.Popen[str], RegionHandle]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(SIZE_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, RegionHandle.decode(process.stdout.readline().encode())


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def test_who_attaches_has_the_same_bytes_and_keeps_them_when_the_owner_has_gone() -> None:
    process, handle = owner()
    region = SharedRegion.attach(handle, SIZE_BYTES)
    assert region.data.nbytes == SIZE_BYTES
    assert bytes(region.data[:10]) == b"owner" + bytes(5)
    region.data[5:9] = b"peer"
    tell(process, "go on")
    tell(process, "leave")
    assert process.wait(30) == 0
    assert bytes(region.data[:9]) == b"ownerpeer"
    assert [path.name for path in Path("/dev/shm").iterdir() if "earl-departing-owner" in path.name] == []


def test_other_memory_than_the_handles_is_refused() -> None:
    process, handle = owner()
    try:
        with pytest.raises(OSError, match="no shared memory of 101 bytes"):
            SharedRegion.attach(handle, SIZE_BYTES + 1)
        with pytest.raises(OSError, match="other shared memory"):
            SharedRegion.attach(replace(handle, nonce="0" * 32), SIZE_BYTES)
        with pytest.raises(FileNotFoundError):
            SharedRegion.attach(replace(handle, descriptor=12345), SIZE_BYTES)
        # An owner that was killed: whatever has its process id later, the memory is gone.
        process.kill()
        process.wait(30)
        with pytest.raises(OSError):
            SharedRegion.attach(handle, SIZE_BYTES)
    finally:
        process.kill()
        process.wait(30)


def test_nobody_attaches_once_sharing_has_ended() -> None:
    process, handle = owner()
    try:
        tell(process, "end")
        assert process.stdout is not None and process.stdout.readline() == "ended\n"
        with pytest.raises(OSError):
            SharedRegion.attach(handle, SIZE_BYTES)
    finally:
        process.kill()
        process.wait(30)


def test_children_of_one_parent_map_what_they_inherit() -> None:
    descriptor = new_memory("earl-test")
    write = """
import sys
from earl.shm import SharedRegion
region = SharedRegion.inherit(int(sys.argv[1]), 100)
region.data[int(sys.argv[2])] += 1
"""
    for place in (0, 99, 99):
        command = [sys.executable, "-c", write, str(descriptor), str(place)]
        subprocess.run(command, pass_fds=[descriptor], check=True, timeout=60)
    region = SharedRegion.inherit(descriptor, 100)
    assert (region.data[0], region.data[98], region.data[99]) == (1, 0, 2)
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_a_region_of_no_bytes_can_be_shared() -> None:
    region = SharedRegion.create("earl-test", 0)
    assert SharedRegion.attach(region.handle, 0).data.nbytes == 0
    region.end_sharing()
