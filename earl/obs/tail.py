"""Reads the new lines of a JSON-lines file that another process appends to."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO

from earl.obs.metrics import parsed

# Read at once at most; the rest with the next read.
SCAN_BYTES = 32 << 20
# What a file is known by: the last of what was read of it. A line is longer than few of these.
KNOWN_BYTES = 4 << 10


class Tail:
    """Follows a JSON-lines file.

    offset: bytes of the file that were read. mark: a digest of the last of them, "" if unknown. With both
    another process can continue. scan_bytes: read at once at most, -1: all.
    renewed: the last `read` began again, because the file was replaced or truncated: forget earlier records.
    Contents are compared too: a file that replaces another one may get its inode number.
    """

    def __init__(self, path: Path, offset: int = 0, mark: str = "", *, scan_bytes: int = SCAN_BYTES) -> None:
        self.path = path
        self.offset = offset
        self.mark = mark
        self.renewed = False
        self._scan_bytes = scan_bytes
        self._file: tuple[int, int] | None = None

    def skip_to_last(self, size_bytes: int) -> None:
        """Leaves out what is further from the end than that. Raises OSError."""
        self.offset, self.mark = max(0, self.path.stat().st_size - size_bytes), ""

    def read(self) -> list[dict[str, Any]]:
        """Whole new lines as records; lines that are none are left out, a missing file has none."""
        try:
            with self.path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            self.renewed = self.offset > 0
            self.offset, self.mark, self._file = 0, "", None
            return []

    def _read(self, file: BinaryIO) -> list[dict[str, Any]]:
        stat = os.fstat(file.fileno())
        known, self._file = self._file, (stat.st_dev, stat.st_ino)
        before = self._before(file)
        self.renewed = (
            (known is not None and known != self._file)
            or stat.st_size < self.offset
            or (self.mark != "" and self.mark != digest(before))
        )
        if self.renewed:
            self.offset, before = 0, b""
        file.seek(self.offset)
        data = file.read(self._scan_bytes)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == self._scan_bytes:
            end = len(data)  # no line is that long
        self.offset += end
        self.mark = digest((before + data[:end])[-KNOWN_BYTES:])
        return [record for line in data[:end].split(b"\n") if (record := parsed(line)) is not None]

    def _before(self, file: BinaryIO) -> bytes:
        """The last of what was read, as it is now."""
        count = min(self.offset, KNOWN_BYTES)
        file.seek(self.offset - count)
        return file.read(count)


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
