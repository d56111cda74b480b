"""The reports of all kinds of workers to the scheduler: when they were busy, and what they read. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BusySpan:
    """A span of time in which a worker was busy. start_ns, end_ns: Unix nanoseconds of its host."""

    what: str
    start_ns: int
    end_ns: int


@dataclass(slots=True, kw_only=True)
class TransferTotals:
    """Everything that was read over one path of the data plane so far. retries: requests sent again."""

    path: str
    size_bytes: int = 0
    seconds: float = 0.0
    transfers: int = 0
    retries: int = 0


def totals_by_path(parts: Iterable[TransferTotals]) -> list[TransferTotals]:
    """One TransferTotals for each path, in the order of paths: the sums over ranks, or over engines."""
    totals: dict[str, TransferTotals] = {}
    for part in parts:
        total = totals.setdefault(part.path, TransferTotals(path=part.path))
        total.size_bytes += part.size_bytes
        total.seconds += part.seconds
        total.transfers += part.transfers
        total.retries += part.retries
    return [totals[path] for path in sorted(totals)]
