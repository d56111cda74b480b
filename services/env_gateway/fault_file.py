"""faults.jsonl: what environments did wrong and which hosts were in quarantine for it, for the run's report.

A line is one of two:

    environment, faults, last, commonest, commonest_count   faults since the line before; the commonest text
                                                            and its count are those of this gateway's process
    environment, host, reason                               a quarantine that began

Each has time_ns, Unix nanoseconds. A run without faults has no such file, and a full one gets no more lines.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from earl.obs.metrics import LineFile
from services.env_gateway.state.faults import FaultTexts

log = logging.getLogger(__name__)

NAME = "faults.jsonl"
LIMIT_BYTES = 4 << 20
# How often new faults are looked for.
PERIOD_S = 5.0


class FaultFile:
    """Writes below `directory`; the file is made with its first line."""

    def __init__(self, directory: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = directory / NAME
        self._limit_bytes = limit_bytes
        self._file: LineFile | None = None
        self._full = False

    def quarantined(self, environment: str, host: str, reason: str) -> None:
        """Writes that a quarantine began."""
        self._write({"environment": environment, "host": host, "reason": reason})

    def update(self, faults: FaultTexts) -> None:
        """Writes a line for each environment that had faults since the last call."""
        for environment, count in list(faults.unreported.items()):
            summary = faults.summary(faults.hosts(environment))
            texts = {
                "last": summary.last,
                "commonest": summary.commonest,
                "commonest_count": summary.commonest_count,
            }
            self._write({"environment": environment, "faults": count, **texts})
            faults.reported(environment)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, record: dict[str, str | int]) -> None:
        if self._file is None:
            self._file = LineFile(self._path)
        if not self._full and self._path.is_file() and self._path.stat().st_size >= self._limit_bytes:
            self._full = True
            log.warning("%s is full: further faults are in no line", self._path)
        if not self._full:
            self._file.write({"time_ns": time.time_ns(), **record})
