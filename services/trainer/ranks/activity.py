"""A trainer's present and past activity, for its heartbeats, its status and the run's timeline.

Written by the computing thread, read by the asyncio side: single attributes and one locked list.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from earl.obs.memory import DeviceMemory, fullest, on_cuda, on_host, rank_devices
from earl.worker_report import BusySpan, TransferTotals, WorkerDevice, totals_by_path
from services.trainer.ranks.process_group import Group

WAITING = "waiting"
READING = "reading"
TRAINING = "training"
PUBLISHING = "publishing"
SAVING = "saving"
SWITCHING = "switching"
# Moving the state out of the device, and back; without it there, between the two.
OFFLOADING = "offloading"
RESTORING = "restoring"
ASLEEP = "asleep"
MOST_SPANS = 256


class RankReport(msgspec.Struct):
    """A rank's part of a StageReport. memory: of its device; None where it uses none."""

    counts: list[int]
    memory: DeviceMemory | None
    devices: list[WorkerDevice]
    transfers: list[TransferTotals]


@dataclass(frozen=True, slots=True)
class StageReport:
    """Figures of all ranks, equal on every rank.

    counts: sums over ranks. memory_fraction: use of the fullest device, 0..1; ranks on CPUs share a host.
    devices: in the order of ranks. transfers: totals by path of the data plane.
    """

    counts: tuple[int, ...]
    memory_fraction: float
    devices: list[WorkerDevice]
    transfers: tuple[TransferTotals, ...]


def gather_report(
    group: Group, transfers: Iterable[TransferTotals] = (), counts: Iterable[int] = ()
) -> StageReport:
    """Gathers what each rank has read and counted, its device and its memory. A collective.

    counts: as many on every rank.
    """
    kind = group.device.type
    memory = on_cuda() if kind == "cuda" else on_host([os.getpid()])
    mine = RankReport(list(counts), memory, rank_devices(kind), list(transfers))
    ranks = [msgspec.json.decode(data, type=RankReport) for data in group.gather(msgspec.json.encode(mine))]
    return StageReport(
        tuple(map(sum, zip(*(rank.counts for rank in ranks), strict=True))),
        fullest(rank.memory for rank in ranks if rank.memory is not None) or 0.0,
        [device for rank in ranks for device in rank.devices],
        tuple(totals_by_path(total for rank in ranks for total in rank.transfers)),
    )


@dataclass(slots=True)
class Activity:
    """The present activity of a rank, and its past ones.

    version: of the parameters. batch_id: the batch trained last. gauges: latest values by name. devices: of
    all ranks.
    """

    version: int = 0
    batch_id: int = 0
    doing: str = WAITING
    # Between two phases: WAITING, or ASLEEP.
    idle: str = WAITING
    # The part of the batch that is trained, 0..1; None while none is being trained.
    train_fraction: float | None = None
    gauges: dict[str, float] = field(default_factory=dict)
    transfers: tuple[TransferTotals, ...] = ()
    devices: Sequence[WorkerDevice] = ()
    # Seconds of the latest phase of each kind.
    seconds: dict[str, float] = field(default_factory=dict)
    # Seconds of all phases of each kind that ended.
    total_seconds: dict[str, float] = field(default_factory=dict)
    _spans: list[BusySpan] = field(default_factory=list)
    _since_ns: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def phase(self, what: str) -> Iterator[None]:
        """Marks the block as time spent on `what`; its span and seconds are kept."""
        with self._lock:
            self.doing, self._since_ns = what, time.time_ns()
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            self.seconds[what] = seconds
            self.total_seconds[what] = self.total_seconds.get(what, 0.0) + seconds
            self.train_fraction = None
            with self._lock:
                self._close(time.time_ns())
                self.doing = self.idle

    def progressed(self, fraction: float) -> None:
        """Notes which part of the batch is trained, 0..1."""
        self.train_fraction = fraction

    def reported(self) -> dict[str, float]:
        """Returns the gauges for a heartbeat, by name; train_fraction is one while it is known."""
        fraction = self.train_fraction
        asleep = {"asleep": 1.0} if self.idle == ASLEEP else {}
        return self.gauges | asleep | ({} if fraction is None else {"train_fraction": fraction})

    def take_spans(self) -> list[BusySpan]:
        """Spans since the last call; what runs now is split here, and its rest comes with a later call."""
        with self._lock:
            if self.doing not in (WAITING, ASLEEP):
                self._close(time.time_ns())
            spans, self._spans = self._spans, []
            return spans

    def _close(self, now_ns: int) -> None:
        if len(self._spans) < MOST_SPANS:
            self._spans.append(BusySpan(self.doing, self._since_ns, now_ns))
        self._since_ns = now_ns
