"""Warnings and errors of a run's processes, counted by their message."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earl.cli.lib.log_lines import LineFilter, Logs
from earl.stack.run_files import LOGS

# The last ones that are shown, and that are kept.
SHOWN, KEPT = 8, 256


@dataclass(slots=True)
class Alert:
    """One message of one process. time_s: of its last line; severity: of logging."""

    process: str
    severity: int
    text: str
    time_s: float
    count: int = 0


class Alerts:
    """The alerts of one run's directory, whose logs are read on as they grow."""

    def __init__(self, directory: Path) -> None:
        self._logs = Logs(directory / LOGS, (), LineFilter(logging.WARNING))
        self._alerts: dict[tuple[str, str], Alert] = {}

    def update(self) -> list[dict[str, Any]]:
        """The last alerts, the newest first: process, whether it is an error, text, count, time_ms."""
        for line in self._logs.lines():
            if line.record is None:
                continue  # of a traceback, or of a library before the first record
            text = line.words()[0]
            # Lines that differ in numbers alone are one alert.
            key = (line.process, re.sub(r"\d+", "0", text))
            alert = self._alerts.setdefault(key, Alert(line.process, line.level, text, line.time_s))
            alert.count += 1
            alert.text, alert.time_s = text, line.time_s
        last = sorted(self._alerts.values(), key=lambda alert: alert.time_s, reverse=True)
        self._alerts = {key: alert for key, alert in self._alerts.items() if alert in last[:KEPT]}
        return [
            {
                "process": alert.process,
                "error": alert.severity >= logging.ERROR,
                "text": alert.text,
                "count": alert.count,
                "time_ms": round(alert.time_s * 1000),
            }
            for alert in last[:SHOWN]
        ]
