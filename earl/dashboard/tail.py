"""A JSON-lines file that somebody writes to: what came since it was read last."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

# Read at once at most; the rest with the next look.
LOOK_BYTES = 32 << 20


class Tail:
    """renewed: the last `read` began anew, for the file was replaced or cut: forget what was before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._file: tuple[int, int] | None = None
        self.renewed = False

    def skip_to_last(self, size_bytes: int) -> None:
        """Leaves out what is further from the end than that. Raises OSError."""
        self._at = max(0, self._path.stat().st_size - size_bytes)

    def read(self) -> list[dict[str, Any]]:
        """Whole new lines as records; lines that are none are left out, a missing file has none."""
        self.renewed = False
        try:
            with self._path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            if self._at:
                self._at, self._file, self.renewed = 0, None, True
            return []

    def _read(self, file: Any) -> list[dict[str, Any]]:
        stat = os.fstat(file.fileno())
        known = (stat.st_dev, stat.st_ino)
        if self._file is not None and (known != self._file or stat.st_size < self._at):
            self._at, self.renewed = 0, True
        self._file = known
        file.seek(self._at)
        data = file.read(LOOK_BYTES)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == LOOK_BYTES:
            end = len(data)  # no line is that long
        self._at += end
        return [record for line in data[:end].split(b"\n") if (record := parsed(line)) is not None]


def parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
