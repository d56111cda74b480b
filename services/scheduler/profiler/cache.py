"""The cache of measurements: one file for each stage, model, hardware and settings, a line a window.

    $EARL_CACHE/profiles/<stage>-<fingerprint>.jsonl

The fingerprint shows whether figures still hold: of the model's shape and dtype, of the hardware and torch's
version, and of the run file's keys that change how fast or how large the stage is. Lines are appended as they
are measured, so that whatever ends a measurement, the next one continues from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from earl.errors import ConfigError
from earl.obs.metrics import LineFile, read_lines
from earl.parallelism import Parallelism
from services.scheduler.profile.plan import ProfilePoint, ProfileProgress
from services.scheduler.profile.rows import ProfileRow

_HASH_CHARACTERS = 16


def fingerprint(facts: Mapping[str, Any]) -> str:
    """A hash of what the figures depend on, given as what JSON can hold."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]


class Cache:
    """One stage's windows. `known` reads; a process that measures holds it (`held`)."""

    def __init__(self, directory: Path, stage: str, facts: Mapping[str, Any]) -> None:
        self.path = directory / f"{stage}-{fingerprint(facts)}.jsonl"
        self._stage = stage
        self._facts = facts

    def known(
        self, points: Mapping[Parallelism, Iterable[ProfilePoint]] | None = None
    ) -> dict[Parallelism, ProfileProgress]:
        """Returns the file's measurements of these parallelisms and points, and of all others in it."""
        requested = (points or {}).items()
        progress = {layout: ProfileProgress(layout, measured_at) for layout, measured_at in requested}
        for line in read_lines(self.path):
            if "context_tokens" not in line:
                continue
            layout = Parallelism(*(int(line[name]) for name in ("dp", "tp", "cp", "pp")))
            known = progress.setdefault(layout, ProfileProgress(layout, ()))
            point = ProfilePoint(int(line["context_tokens"]), int(line["concurrency"]))
            if line.get("oom"):
                known.note_oom(point)
            else:
                fraction = line.get("peak_memory_fraction")
                known.note(point, line["tokens_per_device_s"], line["visit_s"], fraction)
        return progress

    def rows(self) -> list[ProfileRow]:
        """The rows that have been measured well enough."""
        return [row for progress in self.known().values() for row in progress.rows(self._stage)]

    @contextmanager
    def held(self, *, fresh: bool) -> Iterator[None]:
        """Holds the cache for writing; fresh: it is emptied first.

        Raises ConfigError while another process holds it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another process measures stage {self._stage!r} of this model: it holds {lock.name}",
                    "wait for it to end",
                ) from None
            if fresh:
                self.path.unlink(missing_ok=True)
            begun = self.path.exists()
            self._file = LineFile(self.path)
            try:
                if not begun:
                    self._file.append({"of": self._facts})
                yield
            finally:
                self._file.close()

    def note(
        self,
        parallelism: Parallelism,
        point: ProfilePoint,
        rate: float,
        visit_s: float,
        fraction: float | None,
    ) -> None:
        """Adds one window. Only while held."""
        figures = {"tokens_per_device_s": rate, "visit_s": visit_s, "peak_memory_fraction": fraction}
        self._file.append({**parallelism.as_dict(), **point._asdict(), **figures})

    def note_oom(self, parallelism: Parallelism, point: ProfilePoint) -> None:
        """Takes note that a point does not fit into memory. Only while held."""
        self._file.append({**parallelism.as_dict(), **point._asdict(), "oom": True})
