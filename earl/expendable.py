"""Files that a run can do without: their writer continues when the disk is full."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)


class ExpendableFile:
    """A file whose failed writes end nothing; the first of a series of them is logged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._warned = False

    @contextmanager
    def written(self) -> Iterator[None]:
        """Surrounds a write: an OSError is logged, unless the write before it failed too."""
        try:
            yield
        except OSError as error:
            if not self._warned:
                log.warning(
                    "%s cannot be written, the run continues without it: %s", self._path, error.strerror
                )
            self._warned = True
        else:
            self._warned = False
