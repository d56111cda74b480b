"""Faults of environments and quarantines of their hosts, as faults.jsonl recorded them. Pure.

What a line says is the text of an environment or of its host: it is bounded here, whatever a file holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from earl.visible import visible

# Environments that are kept and shown, hosts of each that are named, characters of a text.
ENVIRONMENTS, HOSTS, CHARACTERS = 200, 8, 300


@dataclass(slots=True)
class RecordedFaults:
    """Faults of one environment over the whole run. hosts: quarantines that began, by the host's name."""

    faults: int = 0
    last: str = ""
    commonest: str = ""
    commonest_count: int = 0
    quarantines: int = 0
    reason: str = ""
    hosts: dict[str, int] = field(default_factory=dict)
    time_ns: int = 0


class FaultTable:
    """Adds up the lines of faults.jsonl."""

    def __init__(self) -> None:
        self._environments: dict[str, RecordedFaults] = {}
        # When the last line was written that tells of an environment.
        self._last_ns = 0
        self._full = False

    def clear(self) -> None:
        self._environments.clear()
        self._last_ns, self._full = 0, False

    def add(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Takes further lines of the file; those that are none of its own are left out."""
        for line in lines:
            self._full = self._full or line.get("full") is True
            name, time_ns = text_of(line.get("environment")), number_of(line.get("time_ns"))
            if not name:
                continue
            self._last_ns = max(self._last_ns, time_ns)
            if name not in self._environments and len(self._environments) >= ENVIRONMENTS:
                continue
            recorded = self._environments.setdefault(name, RecordedFaults())
            recorded.time_ns = max(recorded.time_ns, time_ns)
            if "host" in line:
                _add_quarantine(recorded, line)
            else:
                _add_faults(recorded, line)

    def section(self) -> dict[str, Any]:
        """The page's section.

        rows: an environment each, the one with the most faults first. until_ms: Unix milliseconds up to which
        a full file tells; None if it is not full.
        """
        rows = [
            {
                "environment": name,
                "faults": recorded.faults,
                "last": recorded.last,
                "commonest": recorded.commonest,
                "commonest_count": recorded.commonest_count,
                "quarantines": recorded.quarantines,
                "reason": recorded.reason,
                "hosts": [{"name": host, "quarantines": count} for host, count in recorded.hosts.items()],
                "time_ms": recorded.time_ns // 10**6,
            }
            for name, recorded in sorted(
                self._environments.items(), key=lambda item: (-item[1].faults, -item[1].quarantines, item[0])
            )
        ]
        return {"rows": rows, "until_ms": self._last_ns // 10**6 if self._full else None}


def _add_quarantine(recorded: RecordedFaults, line: Mapping[str, Any]) -> None:
    host = text_of(line["host"])
    count = number_of(line.get("quarantines", 1))
    recorded.quarantines += count
    recorded.reason = text_of(line.get("reason"))
    if host in recorded.hosts or len(recorded.hosts) < HOSTS:
        recorded.hosts[host] = recorded.hosts.get(host, 0) + count


def _add_faults(recorded: RecordedFaults, line: Mapping[str, Any]) -> None:
    recorded.faults += number_of(line.get("faults"))
    recorded.last = text_of(line.get("last"))
    count = number_of(line.get("commonest_count"))
    if count >= recorded.commonest_count:
        recorded.commonest, recorded.commonest_count = text_of(line.get("commonest")), count


def text_of(value: Any) -> str:
    return visible(value[:CHARACTERS]) if isinstance(value, str) else ""


def number_of(value: Any) -> int:
    return max(0, value) if isinstance(value, int) else 0
