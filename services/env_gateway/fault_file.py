"""faults.jsonl: faults of environments and quarantines of their hosts, for the run's report.

A line is one of three:

    environment, faults, last, commonest, commonest_count   faults since the environment's line before; the
                                                            commonest text and its count are those of this
                                                            gateway's process
    environment, host, quarantines, reason                  quarantines of a host that began since its line
                                                            before, and the reason for the last of them
    full                                                    the last line of a full file

Each has time_ns, Unix nanoseconds: when it was written, or when the last of its quarantines began. A run
without faults has no such file.

Nothing is written when a fault comes, only every PERIOD_S, a bounded number of lines. The period doubles with
every sixteenth of the file that is filled, so that even steady faults of many environments fill it in days.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from earl.obs.metrics import LineFile
from services.env_gateway.state.faults import FaultTexts

log = logging.getLogger(__name__)

NAME = "faults.jsonl"
LIMIT_BYTES = 4 << 20
# Left free for the line that says that the file is full; longer than any line.
RESERVED_BYTES = 8 << 10
# How often new faults are written at first, and parts of the file after each of which the period is doubled.
PERIOD_S = 5.0
PARTS = 16
# Environments, and hosts in quarantine with one, that an update writes at most.
MOST_LINES = 32


@dataclass(slots=True)
class _NewQuarantines:
    """Quarantines of a host that no line has yet. time_ns, reason: of the last one."""

    count: int
    time_ns: int
    reason: str


class FaultFile:
    """Writes below `directory`; the file is made with its first line. A failed write is tried again later."""

    def __init__(self, directory: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = directory / NAME
        self._limit_bytes = limit_bytes
        self._file: LineFile | None = None
        # Gets no more lines: full, or closed.
        self._ended = False
        # By environment and host.
        self._quarantines: dict[tuple[str, str], _NewQuarantines] = {}

    @property
    def period_s(self) -> float:
        """Seconds until the next update is due."""
        size_bytes = self._file.size_bytes if self._file is not None else 0
        return PERIOD_S * 2 ** (PARTS * size_bytes // self._limit_bytes)

    def quarantined(self, environment: str, host: str, reason: str) -> None:
        """Takes note of a quarantine that begins; the next update writes it."""
        if not self._ended:
            known = self._quarantines.get((environment, host))
            count = known.count + 1 if known is not None else 1
            self._quarantines[environment, host] = _NewQuarantines(count, time.time_ns(), reason)

    def update(self, faults: FaultTexts, most: int | None = MOST_LINES) -> None:
        """Writes new quarantines, and the environments that have new faults: `most` of each, None for all."""
        for (environment, host), new in list(islice(self._quarantines.items(), most)):
            line = {"environment": environment, "host": host, "quarantines": new.count, "reason": new.reason}
            if not self._write(new.time_ns, line):
                return
            del self._quarantines[environment, host]
        for environment, count in list(islice(faults.unreported.items(), most)):
            summary = faults.summary(faults.hosts(environment))
            texts = {
                "last": summary.last,
                "commonest": summary.commonest,
                "commonest_count": summary.commonest_count,
            }
            if not self._write(time.time_ns(), {"environment": environment, "faults": count, **texts}):
                return
            faults.reported(environment)

    def close(self) -> None:
        """Ends the file; what comes later is in no line."""
        self._ended = True
        self._quarantines.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, time_ns: int, line: dict[str, Any]) -> bool:
        """Returns whether the file has the line now."""
        if self._ended:
            return False
        if self._file is None:
            self._file = LineFile(self._path)
        if self._file.size_bytes <= self._limit_bytes - RESERVED_BYTES:
            return self._file.write({"time_ns": time_ns, **line})
        # What a resumed run's gateway finds may end with that line already.
        last = {"time_ns": time.time_ns(), "full": True}
        self._ended = self._file.size_bytes >= self._limit_bytes or self._file.write(last)
        if self._ended:
            self._quarantines.clear()
            log.warning("%s is full: further faults are in no line", self._path)
        return False
