"""Opens an owner's arena as a reader: what is not that arena is refused, and no thread is blocked by it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from earl.dispatch.describe.regions import ArenaRef, host_id
from earl.dispatch.memory import arena_file
from earl.dispatch.memory.arena_file import Header
from earl.errors import RegionGone, TransportUnavailable

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}
_NEWER = "read a newer descriptor"
_OTHER_WAY = 'let its owner serve it over the wire: data_plane.transport = "ucx"'


def can_be_mapped(arena: ArenaRef) -> bool:
    """Returns whether this process can map the arena now."""
    if arena.host != host_id():
        return False
    try:
        fd, _, _ = open_arena(arena.path, arena.nonce, arena.incarnation, arena.file_system)
    except (RegionGone, TransportUnavailable):
        return False
    os.close(fd)
    return True


def open_arena(path: str, nonce: int, incarnation: int, file_system: int) -> tuple[int, Header, int]:
    """(file descriptor, header, bytes of the file) of an arena. file_system: as in ArenaRef.

    Raises RegionGone when it is gone or another's, TransportUnavailable when it is barred or not shared.
    """
    try:
        # A FIFO or a device in an arena's place must not block the thread that opens it.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        raise _absence_error(path, file_system) from None
    except (OSError, ValueError) as error:
        raise TransportUnavailable(f"arena {path!r} cannot be opened: {error}", _OTHER_WAY) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
            raise RegionGone(f"{path} is no arena: it is {kind}", _NEWER)
        header = Header.unpack(os.pread(fd, arena_file.PAGE_BYTES, 0), path, status.st_size)
        if (header.nonce, header.incarnation) != (nonce, incarnation):
            raise RegionGone(
                f"arena {path} is of incarnation {header.incarnation:x}, not {incarnation:x}",
                f"its owner restarted; {_NEWER}",
            )
    except OSError as error:
        os.close(fd)
        raise TransportUnavailable(f"arena {path} cannot be read: {error}", _OTHER_WAY) from error
    except BaseException:
        os.close(fd)
        raise
    return fd, header, status.st_size


def _absence_error(path: str, file_system: int) -> RegionGone | TransportUnavailable:
    """The error of an arena that is not there: gone, or on a file system that this process does not see."""
    if file_system and arena_file.file_system_of(Path(path).parent) != file_system:
        return TransportUnavailable(
            f"arena {path} is on a file system that this process does not share with the arena's owner",
            "share data_plane.arena_dir, or let the owner serve its arenas to this process: set "
            "data_plane.bind to its address, and trusted_network",
        )
    return RegionGone(f"arena {path} is gone", f"its owner ended: {_NEWER}")
