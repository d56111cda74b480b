"""Files that are replaced while a process runs: tokens and certificates that are rotated."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from earl.errors import EarlError

log = logging.getLogger(__name__)


class WatchedFiles:
    """Tells whether these files have changed; through links, which mounted secrets are.

    what: how logs call them, "the token file".
    """

    def __init__(self, what: str, *paths: Path) -> None:
        self._what = what
        self._paths = paths
        self._last_stamps = self._stamps()

    def changed(self) -> bool:
        """Returns whether a file has changed since the last call, or since this object was made."""
        stamps = self._stamps()
        changed = stamps != self._last_stamps
        self._last_stamps = stamps
        return changed

    def reload_if_changed(
        self, load: Callable[[], None], on_refused: Callable[[EarlError], None] | None = None
    ) -> bool:
        """Loads the files if one has changed; returns whether that was so and succeeded.

        load: raises an EarlError for files that cannot be used, and leaves all as it was; that is logged, and
        given to `on_refused`.
        """
        if not self.changed():
            return False
        try:
            load()
        except EarlError as error:
            log.error("%s changed and is not taken: %s", self._what, error)
            if on_refused is not None:
                on_refused(error)
            return False
        return True

    def _stamps(self) -> list[tuple[int, ...]]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, ...]:
    """A value that differs between any two states of a file."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev, status.st_mode)
