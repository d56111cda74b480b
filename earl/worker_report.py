"""The reports of all kinds of workers to the scheduler: when they were busy, what they read, and the devices
that they compute on. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BusySpan:
    """A span of time in which a worker was busy. start_ns, end_ns: Unix nanoseconds of its host."""

    what: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class LiveSequence:
    """A sequence that has not ended, at the engine of that index among its worker's.

    session: its name there. context_tokens: so far; response_tokens: those of them after the first prompt.
    """

    session: str
    ticket_id: int
    engine: int
    context_tokens: int
    response_tokens: int


@dataclass(frozen=True, slots=True)
class SequenceMove:
    """A sequence continues at the engine of that index among its worker's."""

    session: str
    engine: int


@dataclass(frozen=True, slots=True)
class WorkerDevice:
    """The device that one rank of a worker computes on.

    kind: "cpu" or "cuda". id: the same for all processes that compute on it: a GPU's UUID, the name of a
    CPU's host. number: of a GPU among those of its host, as far as CUDA_VISIBLE_DEVICES tells; of a CPU 0.
    total_bytes: of its memory. free_bytes: at the time of the report; 0 where the process that reports does
    not know, as of the GPUs of an engine's other ranks.
    """

    kind: str
    id: str
    number: int
    total_bytes: int
    free_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class TransferTotals:
    """Everything that was read over one path of the data plane so far.

    seconds: of all reads together, so that bytes a second are what one read gets, not what a run moves.
    retries: requests that were sent again after a connection was lost.
    """

    path: str
    size_bytes: int = 0
    seconds: float = 0.0
    transfers: int = 0
    retries: int = 0

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second; 0 while nothing was read."""
        return self.size_bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0


def totals_by_path(parts: Iterable[TransferTotals]) -> list[TransferTotals]:
    """One TransferTotals for each path, in the order of paths: the sums over ranks, engines or workers."""
    totals: dict[str, TransferTotals] = {}
    for part in parts:
        total = totals.setdefault(part.path, TransferTotals(path=part.path))
        total.size_bytes += part.size_bytes
        total.seconds += part.seconds
        total.transfers += part.transfers
        total.retries += part.retries
    return [totals[path] for path in sorted(totals)]
