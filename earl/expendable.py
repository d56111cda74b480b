"""Files that a run can do without: whoever writes one goes on where the disk is full."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)


class ExpendableFile:
    """What cannot be written to it ends nothing, and is said once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._said = False

    @contextmanager
    def written(self) -> Iterator[None]:
        """Around a write. An OSError is logged, unless the write before this one failed, too."""
        try:
            yield
        except OSError as error:
            if not self._said:
                log.warning("%s cannot be written, the run goes on without: %s", self._path, error.strerror)
            self._said = True
        else:
            self._said = False
