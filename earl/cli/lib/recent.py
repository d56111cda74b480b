"""Latencies of the last minute, from the counts since the beginning in successive snapshots. Pure.

counts of a snapshot ─► kept for WINDOW_S ─► counts now - counts then ─► quantiles of what lies between
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from earl.cli.lib.gateway_codec import GatewayEnvironment, HostLatency
from earl.obs.histogram import Histogram

WINDOW_S = 60.0

# When a snapshot was taken, and the counts in it.
_Counted = deque[tuple[float, tuple[int, ...]]]


class Recent:
    """Remembers the snapshots of the last WINDOW_S at each environment."""

    def __init__(self) -> None:
        self._answered: dict[tuple[str, str], _Counted] = {}

    def of(self, listed: Sequence[GatewayEnvironment], now_s: float) -> tuple[GatewayEnvironment, ...]:
        """The same environments, with the latencies of answers in the last WINDOW_S, or since the first
        snapshot if that was later. now_s: time of this snapshot, on a monotonic clock.

        In the first snapshot, and for a gateway that gives no counts, they are those since the gateway began.
        """
        return tuple(
            replace(
                environment,
                reset=self._of((environment.name, "reset"), environment.reset, now_s),
                step=self._of((environment.name, "step"), environment.step, now_s),
            )
            for environment in listed
        )

    def _of(self, key: tuple[str, str], latency: HostLatency, now_s: float) -> HostLatency:
        total = Histogram()
        if len(latency.counts) != len(total.counts):
            return latency
        counts = self._answered.setdefault(key, deque())
        if counts and any(now < then for now, then in zip(latency.counts, counts[-1][1], strict=True)):
            counts.clear()  # the gateway was started again
        counts.append((now_s, latency.counts))
        while len(counts) > 1 and counts[1][0] <= now_s - WINDOW_S:
            counts.popleft()
        if len(counts) == 1:
            return latency
        total.counts = [now - then for now, then in zip(latency.counts, counts[0][1], strict=True)]
        total.longest = latency.longest_s
        return replace(latency, count=total.count, p50_s=total.quantile(0.5), p99_s=total.quantile(0.99))
