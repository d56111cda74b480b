"""Memory that processes of one host share: anonymous (memfd), so that nothing is left however they end.

    inherited   parent: new_memory(name) ─ pass_fds ─► every child: SharedRegion.inherit(descriptor, size)
    by handle   owner: SharedRegion.create(name, size) ─ handle, by any channel ─► peer: SharedRegion.attach

Promise: who attaches has the memory that the handle was made for, or an OSError: a process id may be of
another process by then, or of another host, so size and a random number at the memory's start are compared.
Memory exists as long as anyone maps it or holds a descriptor of it; it has no name in a file system. Arenas
(earl/dispatch/memory) are files with names instead: their readers come later, from other containers too, and
know no more than a path from the registry.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import secrets
from dataclasses import dataclass
from typing import Self

# Whether this platform has such memory.
AVAILABLE = hasattr(os, "memfd_create")

_NONCE_BYTES = 16
# Before the data, which so begins with a cache line.
_HEADER_BYTES = 64


def new_memory(name: str) -> int:
    """The descriptor of new memory without a size; the caller closes it. name: for /proc/PID/maps.

    Children that inherit the descriptor map the memory with SharedRegion.inherit. Raises OSError where there
    are no more descriptors.
    """
    return os.memfd_create(name)


@dataclass(frozen=True, slots=True)
class RegionHandle:
    """A reference to a region: the process that holds it, and its descriptor there. nonce: of the region,
    hexadecimal.
    """

    pid: int
    descriptor: int
    nonce: str

    def encode(self) -> bytes:
        return json.dumps([self.pid, self.descriptor, self.nonce]).encode()

    @classmethod
    def decode(cls, data: bytes) -> RegionHandle:
        """The handle that these bytes encode. Raises ValueError if they encode none."""
        pid, descriptor, nonce = json.loads(data)
        return cls(int(pid), int(descriptor), str(nonce))


class SharedRegion:
    """Shared memory that this process maps. data: size_bytes, writable, zeros at first.

    It is unmapped once nothing refers to `data` or to what was made of it.
    """

    def __init__(self, mapped: mmap.mmap, descriptor: int, nonce: str) -> None:
        self._descriptor, self._nonce = descriptor, nonce
        self.data = memoryview(mapped)[_HEADER_BYTES:]

    @classmethod
    def create(cls, name: str, size_bytes: int) -> Self:
        """New memory, to be attached to until `end_sharing`. name: for /proc/PID/maps; it may be used twice.

        Raises OSError where there are no more descriptors, or no memory.
        """
        nonce = secrets.token_bytes(_NONCE_BYTES)
        descriptor = new_memory(name)
        try:
            os.write(descriptor, nonce)
            os.ftruncate(descriptor, _HEADER_BYTES + size_bytes)
            mapped = mmap.mmap(descriptor, _HEADER_BYTES + size_bytes)
        except OSError:
            os.close(descriptor)
            raise
        return cls(mapped, descriptor, nonce.hex())

    @classmethod
    def inherit(cls, descriptor: int, size_bytes: int) -> Self:
        """The memory behind a descriptor that a parent made by `new_memory`, which is closed here.

        All who inherit it name the same size. Raises OSError.
        """
        try:
            os.ftruncate(descriptor, _HEADER_BYTES + size_bytes)
            return cls(mmap.mmap(descriptor, _HEADER_BYTES + size_bytes), -1, "")
        finally:
            os.close(descriptor)

    @classmethod
    def attach(cls, handle: RegionHandle, size_bytes: int) -> Self:
        """Another process's memory, which must be of this size.

        Raises OSError where it cannot be had: it is of another host or user, or gone, or not this memory.
        """
        descriptor = os.open(f"/proc/{handle.pid}/fd/{handle.descriptor}", os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size != _HEADER_BYTES + size_bytes:
                raise OSError(errno.ESTALE, f"it is no shared memory of {size_bytes} bytes")
            mapped = mmap.mmap(descriptor, _HEADER_BYTES + size_bytes)
        finally:
            os.close(descriptor)
        if mapped[:_NONCE_BYTES].hex() != handle.nonce:
            raise OSError(errno.ESTALE, "it is other shared memory than the handle's")
        return cls(mapped, -1, handle.nonce)

    @property
    def handle(self) -> RegionHandle:
        """The handle with which others attach; of a region that this process created and still shares."""
        assert self._descriptor >= 0
        return RegionHandle(os.getpid(), self._descriptor, self._nonce)

    def end_sharing(self) -> None:
        """Prevents others from attaching from now on; those that have attached keep the memory.

        Called once, by the creator.
        """
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
