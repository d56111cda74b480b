"""The arena's file: where it lies, how it starts, who may remove it.

```
header (one page)  magic · nonce · incarnation · size · slots · data offset
slot table         slots × 4 uint64: generation, offset, size, unused
data               regions, from a page boundary to the end
```
A slot's generation is odd while its region is published and even otherwise; it only grows, so a
reader that finds the expected generation before and after copying copied that very region.
The owner holds an exclusive flock on the file as long as it lives: a file that can be locked has
no owner and is removed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from earl.config.data_plane import GRAIN_BYTES, DataPlaneConfig
from earl.errors import ConfigError, RegionGone

MAGIC = b"EARLARN1"
PAGE_BYTES = mmap.PAGESIZE
SLOT_WORDS = 4
SLOT_BYTES = 8 * SLOT_WORDS
MIN_SLOTS = 1 << 10
MAX_SLOTS = 1 << 16
_HEADER = struct.Struct("<8s6Q")
_CREATE_ATTEMPTS = 16
_NO_SPACE = (errno.ENOSPC, errno.EFBIG, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Header:
    """The contents of the first page. All sizes in bytes; offsets from the start of the file."""

    nonce: int
    incarnation: int
    size_bytes: int
    slots: int
    table_offset: int
    data_offset: int

    def pack(self) -> bytes:
        return _HEADER.pack(
            MAGIC,
            self.nonce,
            self.incarnation,
            self.size_bytes,
            self.slots,
            self.table_offset,
            self.data_offset,
        )

    @classmethod
    def unpack(cls, data: bytes, path: str, file_bytes: int) -> Header:
        """Raises RegionGone when this is no arena of the file's size."""
        if len(data) >= _HEADER.size:
            magic, *fields = _HEADER.unpack_from(data)
            header = cls(*fields)
            table_stop = header.table_offset + header.slots * SLOT_BYTES
            if (
                magic == MAGIC
                and header.size_bytes == file_bytes
                and _HEADER.size <= header.table_offset
                and table_stop <= header.data_offset <= file_bytes
                and header.table_offset % 8 == 0
            ):
                return header
        raise RegionGone(f"{path} is no arena ({file_bytes} bytes)", "read a newer descriptor")


def header_for(size_bytes: int, nonce: int, incarnation: int) -> Header:
    """The header of an arena whose data area may hold `size_bytes`, rounded up to whole pages.

    A region for every GRAIN_BYTES, at least MIN_SLOTS, at most MAX_SLOTS.
    """
    slots = min(MAX_SLOTS, max(MIN_SLOTS, size_bytes // GRAIN_BYTES))
    data_offset = in_pages(PAGE_BYTES + slots * SLOT_BYTES)
    return Header(nonce, incarnation, data_offset + in_pages(size_bytes), slots, PAGE_BYTES, data_offset)


def in_pages(size_bytes: int) -> int:
    """Rounds up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def arena_directory(config: DataPlaneConfig, run_dir: Path) -> Path:
    """Returns the directory of a run's arenas: one for all processes of a run, another for each run."""
    return Path(config.arena_dir) / arena_directory_name(run_dir)


def arena_directory_name(run_dir: Path) -> str:
    """The last part of the directory of a run's arenas, which no other run's has."""
    resolved = run_dir.resolve()
    name = re.sub(r"[^A-Za-z0-9._-]", "_", resolved.name)[:64]
    return f"earl-{name}-{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}"


def arena_path(directory: Path, owner: str, incarnation: int) -> Path:
    """The path of an owner's arena: each incarnation of an owner has its own file."""
    return directory / f"{re.sub(r'[^A-Za-z0-9._-]', '_', owner)}-{incarnation:016x}.arena"


def ensure_directory(directory: Path) -> None:
    """Makes it, private to this user. Raises ConfigError when another user owns it or it cannot be made."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
    except OSError as error:
        raise ConfigError(
            f"arena directory {directory} cannot be made: {error.strerror}", "set data_plane.arena_dir"
        ) from error
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"arena directory {directory} belongs to user {status.st_uid}", "set data_plane.arena_dir"
        )


def create(path: Path, size_bytes: int, allocated_bytes: int) -> int:
    """A new locked file descriptor, its first bytes allocated, so that no later touch of them can fail; the
    others are for `extend`.

    Raises ConfigError when the file system is too small or an arena of this name is alive.
    """
    for _ in range(_CREATE_ATTEMPTS):
        ensure_directory(path.parent)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # another owner's close removed the empty directory in between
        except FileExistsError:
            raise ConfigError(
                f"arena {path} exists", "give every owner its own name and every life its own incarnation"
            ) from None
        fcntl.flock(fd, fcntl.LOCK_EX)
        if not _is_at(fd, path):
            os.close(fd)
            continue  # a cleaner took it for a dead owner's before the lock
        try:
            if not extend(fd, 0, allocated_bytes):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.ftruncate(fd, size_bytes)
        except OSError as error:
            path.unlink(missing_ok=True)
            os.close(fd)
            if error.errno not in _NO_SPACE:
                raise
            raise ConfigError(
                f"an arena of {allocated_bytes} bytes does not fit {path.parent}: "
                f"{_free_bytes(path.parent)} free",
                "make the tmpfs larger, ask for a smaller arena, or set data_plane.arena_dir",
            ) from error
        return fd
    raise ConfigError(f"arena {path} was removed while it was made", "stop what removes files there")


def extend(fd: int, start: int, stop: int) -> bool:
    """Allocates the bytes [start, stop) of an arena's file; returns whether its file system has them.

    What is larger than all that is free is not tried: others would find the file system full meanwhile.
    """
    space = os.fstatvfs(fd)
    if stop - start > space.f_bavail * space.f_frsize:
        return False
    try:
        os.posix_fallocate(fd, start, stop - start)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        return False
    return True


def allocated_prefix(fd: int) -> int:
    """Bytes from the start of the file on that hold data: reading beyond them would allocate memory."""
    return os.lseek(fd, 0, os.SEEK_HOLE)


def file_system_of(directory: Path) -> int:
    """The number of the file system of a directory, or of its nearest parent that exists."""
    for place in (directory, *directory.parents):
        try:
            return os.stat(place).st_dev
        except OSError:
            continue
    return 0


def remove_stale(directory: Path) -> list[Path]:
    """Removes the arenas of owners that are dead; returns what was removed."""
    removed: list[Path] = []
    for path in sorted(directory.glob("*.arena")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # gone meanwhile, or not readable by this user
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                path.unlink(missing_ok=True)
                removed.append(path)
        except BlockingIOError:
            pass  # its owner lives
        finally:
            os.close(fd)
    return removed


def remove(path: Path) -> None:
    """Removes an arena's file, and its directory when it was the last."""
    path.unlink(missing_ok=True)
    try:
        path.parent.rmdir()
    except OSError:
        pass  # others' arenas are still there


def _is_at(fd: int, path: Path) -> bool:
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), status)


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize
