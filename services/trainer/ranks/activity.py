"""A trainer's present and past activity, for its heartbeats, its status and the run's timeline.

Written by the computing thread, read by the asyncio side: single attributes and one locked list.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

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


def gather_transfers(group: Group, mine: Iterable[TransferTotals]) -> tuple[TransferTotals, ...]:
    """The totals of all ranks, by path, on every rank. A collective."""
    ranks = group.gather(msgspec.json.encode(list(mine)))
    parts = [part for data in ranks for part in msgspec.json.decode(data, type=list[TransferTotals])]
    return tuple(totals_by_path(parts))


def memory_fraction(group: Group) -> float:
    """Returns the memory use of the fullest device of all ranks, 0..1; ranks on CPUs share a host. A
    collective.
    """
    mine = on_cuda() if group.device.type == "cuda" else on_host([os.getpid()])
    ranks = [json.loads(data) for data in group.gather(json.dumps(mine and asdict(mine)).encode())]
    return fullest(DeviceMemory(**memory) for memory in ranks if memory) or 0.0


def gather_devices(group: Group) -> list[WorkerDevice]:
    """The devices of all ranks, in their order. A collective."""
    mine = rank_devices(group.device.type)
    ranks = group.gather(msgspec.json.encode(mine))
    return [device for data in ranks for device in msgspec.json.decode(data, type=list[WorkerDevice])]


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
