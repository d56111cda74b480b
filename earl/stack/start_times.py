"""The seconds that each process of a run took to start, kept for the next start with the same model.

    every process ready ─► $EARL_CACHE/starts/<hash of the run file's model>.json ─► time left, next time

A start is as long as its model is large: it is made or converted, and then read. What the last one took on
this machine is the estimate; without one there is only the bound, stack.start_s.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from earl.config.model import ModelConfig
from earl.expendable import ExpendableFile
from earl.models.source import cache_directory
from earl.stack.run_files import read_object, replace

HASH_CHARACTERS = 16


class StartTimes:
    """The start times of the processes of runs with one model, in a file of the cache."""

    def __init__(self, model: ModelConfig) -> None:
        digest = hashlib.sha256(model.model_dump_json().encode()).hexdigest()[:HASH_CHARACTERS]
        self._path = cache_directory() / "starts" / f"{digest}.json"
        self._expendable = ExpendableFile(self._path)

    def last(self) -> dict[str, float]:
        """Returns the seconds that each process took at the last start; empty without one."""
        return {
            name: float(seconds)
            for name, seconds in read_object(self._path).items()
            if isinstance(seconds, (int, float)) and 0 <= seconds < float("inf")
        }

    def keep(self, seconds: Mapping[str, float]) -> None:
        """Writes the seconds that each process took. A cache that cannot be written is logged, no more."""
        with self._expendable.written():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace(self._path, json.dumps({name: round(value, 2) for name, value in seconds.items()}))
