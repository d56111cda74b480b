"""What workers last said of themselves: load, gauges, transfers.

Telemetry only: no decision of the ledger rests on it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Moved:
    """What one life of a worker moved over one path since it began."""

    size_bytes: int = 0
    seconds: float = 0.0
    transfers: int = 0


@dataclass(slots=True)
class Report:
    """A worker's last heartbeat. seen_s: monotonic."""

    incarnation: int
    seen_s: float
    running: int = 0
    version: int = 0
    gauges: Mapping[str, float] = field(default_factory=dict)
    transfers: Mapping[str, Moved] = field(default_factory=dict)


class Fleet:
    """Last reports by worker name; transfers of former lives stay counted."""

    def __init__(self) -> None:
        self.reports: dict[str, Report] = {}
        self._former_bytes: dict[str, int] = {}

    def heard(self, name: str, report: Report) -> None:
        """Takes a heartbeat."""
        before = self.reports.get(name)
        if before is not None and before.incarnation != report.incarnation:
            for path, moved in before.transfers.items():
                self._former_bytes[path] = self._former_bytes.get(path, 0) + moved.size_bytes
        self.reports[name] = report

    def bytes_by_path(self) -> dict[str, int]:
        """Bytes moved by all workers of the run, as far as heard."""
        totals = dict(self._former_bytes)
        for report in self.reports.values():
            for path, moved in report.transfers.items():
                totals[path] = totals.get(path, 0) + moved.size_bytes
        return totals
