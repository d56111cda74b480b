"""Files that are replaced while a process runs: tokens and certificates that are rotated."""

from __future__ import annotations

import os
from pathlib import Path


class Watched:
    """Tells whether these files have changed; through links, which mounted secrets are."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = self._stamps()

    def changed(self) -> bool:
        """Since this was last asked, or since it was made."""
        stamps = self._stamps()
        changed = stamps != self._seen
        self._seen = stamps
        return changed

    def _stamps(self) -> list[tuple[int, ...]]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, ...]:
    """What tells two states of a file apart."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev, found.st_mode)
