"""Measurements that engines of every kind report in EngineStats."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence

from earl.obs.memory import DeviceMemory, on_cuda, on_host
from services.rollout.engines.contract.engine import GENERATES, BusyPeriod

# Steps closer than this are one busy period; so many periods are kept until they are asked for.
JOIN_NS = 5_000_000
BUSY_PERIODS = 4096


class BusyClock:
    """Measures when the engine steps: `start` before a step, `end` after it."""

    def __init__(self) -> None:
        self._periods: deque[BusyPeriod] = deque(maxlen=BUSY_PERIODS)
        self._started_ns = self._clock_ns = 0
        # Nanoseconds that steps took in all.
        self.total_ns = 0

    def start(self) -> None:
        self._started_ns, self._clock_ns = time.time_ns(), time.perf_counter_ns()

    @property
    def running_s(self) -> float:
        """Seconds since the step began."""
        return (time.perf_counter_ns() - self._clock_ns) / 1e9

    def end(self) -> int:
        """Ends the step; returns the nanoseconds that it took."""
        took_ns = time.perf_counter_ns() - self._clock_ns
        self.total_ns += took_ns
        ended_ns = self._started_ns + took_ns
        if self._periods and self._started_ns - self._periods[-1].end_ns < JOIN_NS:
            self._periods[-1].end_ns = ended_ns
        else:
            self._periods.append(BusyPeriod(GENERATES, self._started_ns, ended_ns))
        return took_ns

    def take(self) -> list[BusyPeriod]:
        """The periods that were not yet reported."""
        periods, self._periods = list(self._periods), deque(maxlen=BUSY_PERIODS)
        return periods


class PrefillRate:
    """The time of computing KV for many tokens: a decaying mean over the steps that mostly prefilled."""

    _KEPT = 0.9

    def __init__(self) -> None:
        self._tokens = self._took_ns = 0.0

    def note(self, sequences: int, tokens: int, took_ns: int) -> None:
        """A step of so many sequences and tokens."""
        if tokens >= 2 * sequences:
            self._tokens = self._KEPT * self._tokens + tokens
            self._took_ns = self._KEPT * self._took_ns + took_ns

    def nanoseconds(self, tokens: int) -> int:
        """Predicts the time of prefilling so many tokens; 0 before the first such step."""
        return int(tokens * self._took_ns / self._tokens) if self._tokens else 0


def device_memory(device: str, others: Sequence[int] = (), *, alike: int = 1) -> DeviceMemory | None:
    """Returns the memory use of the engine's device; None where this process cannot know.

    On CUDA that of this process's device; on a CPU what this process and `others` (process ids) hold of the
    host's memory, times `alike`: how many such sets of processes there are.
    """
    if device.startswith("cuda"):
        return on_cuda()
    return on_host([os.getpid(), *others], alike)
