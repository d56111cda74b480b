"""The TCP sockets of a UCX worker, and their sudden end.

UCX closes an endpoint with a last message to its peer, sent in a busy loop: behind a payload that a dead link
holds back the loop stands still until the link is back, and then the message lies in the middle of a payload,
which the peer takes for headers. So a connection that ends early ends at its sockets: UCX then sees what it
sees when a peer dies, and sends nothing any more.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import struct
from collections.abc import Iterator

_WATCHED = re.compile(r"tfd:\s*(\d+).*\bino:([0-9a-f]+)")
# l_onoff, l_linger: what is not sent yet is dropped, and the peer is told by a reset.
_NO_LINGER = struct.pack("ii", 1, 0)


def reset_connections(epoll_fd: int) -> int:
    """Ends the connections that an epoll descriptor watches, itself or by way of others; returns how many."""
    ended = 0
    for fd in set(_watched(epoll_fd, set())):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as shared:
            shared.getpeername()  # one that listens, or is not connected yet, has none, and is left alone
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            shared.shutdown(socket.SHUT_RDWR)
            ended += 1
    return ended


def _watched(epoll_fd: int, passed: set[int]) -> Iterator[int]:
    """The sockets below an epoll descriptor."""
    passed.add(epoll_fd)
    try:
        with open(f"/proc/self/fdinfo/{epoll_fd}", encoding="ascii") as lines:
            watched = [match for line in lines if (match := _WATCHED.match(line))]
    except OSError:
        return
    for match in watched:
        fd, inode = int(match[1]), int(match[2], 16)
        with contextlib.suppress(OSError):
            status = os.fstat(fd)
            # The kernel names a descriptor as it was: what was closed may be another's by now.
            if status.st_ino != inode:
                continue
            if stat.S_ISSOCK(status.st_mode):
                yield fd
            elif fd not in passed:
                yield from _watched(fd, passed)
