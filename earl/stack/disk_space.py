"""Free space on a run's disk: tells a full disk from other failures, and reserves space to report it.

A reserve is held on the disk from the launch on. When a launch fails it is given up first, so that the
failure and the record of the launch can be written although the disk is full.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from earl.errors import DiskFull, EarlError

RESERVE = ".reserve"
RESERVE_BYTES = 1 << 20
# With less than this free, what failed is taken to have failed for lack of space.
FULL_BYTES = 1 << 20


def hold(directory: Path) -> None:
    """Takes the reserve; where it does not fit on the disk, there is none."""
    with suppress(OSError), (directory / RESERVE).open("wb") as reserve:
        os.posix_fallocate(reserve.fileno(), 0, RESERVE_BYTES)


def give_up(directory: Path) -> None:
    """Frees the reserve."""
    with suppress(OSError):
        (directory / RESERVE).unlink(missing_ok=True)


def with_disk_full(directory: Path, error: EarlError) -> EarlError:
    """The error, or DiskFull with its message if the directory's disk is full."""
    try:
        free_bytes = shutil.disk_usage(directory).free
    except OSError:
        return error
    if free_bytes >= FULL_BYTES or isinstance(error, DiskFull):
        return error
    full = DiskFull(
        f"the disk of {directory} is full ({free_bytes >> 10} KiB free): {error.message}",
        f"free some space, then continue with: earl resume {directory}",
    )
    full.__cause__ = error
    return full
