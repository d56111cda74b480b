"""Files that are replaced while a process runs: tokens and certificates that are rotated."""

from __future__ import annotations

import os
from pathlib import Path


class WatchedFiles:
    """Tells whether these files have changed; through links, which mounted secrets are."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._last_stamps = self._stamps()

    def changed(self) -> bool:
        """Returns whether a file has changed since the last call, or since this object was made."""
        stamps = self._stamps()
        changed = stamps != self._last_stamps
        self._last_stamps = stamps
        return changed

    def _stamps(self) -> list[tuple[int, ...]]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, ...]:
    """A value that differs between any two states of a file."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev, status.st_mode)
