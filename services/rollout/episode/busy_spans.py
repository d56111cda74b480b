"""The content of a heartbeat: when the worker was busy, in few spans of the same total length, and rates
between two heartbeats.

Pure: time is an argument (Unix nanoseconds for spans, monotonic seconds for rates).
"""

from __future__ import annotations

from itertools import pairwise

from earl.worker_report import BusySpan

# Spans of one kind of work in a heartbeat.
MOST_SPANS = 4


class BusySpans:
    """Records intervals in which at least one piece of work of a kind was running.

    Gaps shorter than join_ns are closed; at most MOST_SPANS a kind leave with one heartbeat, so that the
    timeline stays small whatever the load. Heartbeats of a large fleet are far apart: what `few` gathers
    shows how long a worker was busy, and when to within the gaps that it took out.
    """

    def __init__(self, join_ns: int = 20_000_000) -> None:
        self._join_ns = join_ns
        self._running: dict[str, int] = {}
        self._since_ns: dict[str, int] = {}
        self._closed: dict[str, list[tuple[int, int]]] = {}

    def enter(self, what: str, now_ns: int) -> None:
        running = self._running.get(what, 0)
        if running == 0:
            closed = self._closed.get(what)
            if closed and now_ns - closed[-1][1] < self._join_ns:
                self._since_ns[what] = closed.pop()[0]
            else:
                self._since_ns[what] = now_ns
        self._running[what] = running + 1

    def leave(self, what: str, now_ns: int) -> None:
        running = self._running[what] - 1
        self._running[what] = running
        if running == 0:
            self._closed.setdefault(what, []).append((self._since_ns.pop(what), now_ns))

    def add(self, what: str, start_ns: int, end_ns: int) -> None:
        self._closed.setdefault(what, []).append((start_ns, end_ns))

    def take(self, now_ns: int) -> list[BusySpan]:
        """Spans since the last call; the span of work that still runs ends at now_ns, and another begins
        there."""
        for what, since_ns in self._since_ns.items():
            if now_ns > since_ns:
                self._closed.setdefault(what, []).append((since_ns, now_ns))
                self._since_ns[what] = now_ns
        spans = [
            BusySpan(what, start_ns, end_ns)
            for what, closed in self._closed.items()
            for start_ns, end_ns in few(closed, MOST_SPANS)
        ]
        self._closed.clear()
        return spans


def few(intervals: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Sorted, disjoint intervals, at most `most` of them, together as long as the union of the given ones.

    Where there are more, the smallest gaps are taken out: what follows one is moved to what was before it, so
    that they are not longer together than what was busy.
    """
    joined: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    if len(joined) <= most:
        return joined
    by_gap = sorted(range(1, len(joined)), key=lambda i: joined[i][0] - joined[i - 1][1])
    edges = [0, *sorted(by_gap[len(by_gap) - (most - 1) :]), len(joined)]
    parts = [joined[a:b] for a, b in pairwise(edges)]
    return [(part[0][0], part[0][0] + sum(end - start for start, end in part)) for part in parts]


class Rate:
    """Increase per second of a growing total, between two calls."""

    def __init__(self) -> None:
        self._total = 0.0
        self._last_s: float | None = None

    def __call__(self, total: float, now_s: float) -> float:
        before, since_s = self._total, self._last_s
        self._total, self._last_s = total, now_s
        if since_s is None or now_s <= since_s or total < before:
            return 0.0
        return (total - before) / (now_s - since_s)
