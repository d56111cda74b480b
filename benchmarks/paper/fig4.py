"""Fig. 4: how soon data has changed from one stage's layout to the next one's, over links of a known rate.

    direct    every host reads its slices from all others, over UCX
    central   all hosts send to a controller on host 0, which sends on: hosts - 1 times as much on its link

Both ways run in turn over the same wire: hosts in network namespaces, each with a link that the kernel limits
(benchmarks.network).
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

from benchmarks.dispatch.caps import curve
from benchmarks.dispatch.fleet import WAYS, ExchangeRound, Fleet, HostPlace
from benchmarks.dispatch.hosts import Plan
from benchmarks.dispatch.nic import central_seconds, direct_seconds
from benchmarks.dispatch.pattern import MIB, ROW_BYTES, Pattern
from benchmarks.network.links import MTU_BYTES, Link
from benchmarks.network.rig import Rig, network
from benchmarks.paper.figure import PaperFigure
from benchmarks.paper.settings import FIG4_MIB, PaperSettings
from benchmarks.record.progress import phase
from benchmarks.role import ANSWER_S

# A host's own tmpfs.
ARENAS = "/dev/shm/arenas"
LIMITS = {"direct": direct_seconds, "central": central_seconds}
# The paper's, at 8K, 16K and 32K tokens.
PAPER_SPEEDUPS = {46.0: 9.8, 93.0: 11.0, 187.0: 11.2}
GOALS = {"dispatch_speedup": 11.2, "direct_of_limit": 0.9}
GOAL_HOSTS, GOAL_GBPS, GOAL_ROUNDS = 16, 0.25, 3
# Rates are doubled until the cores no longer carry them, so many times at most.
DOUBLINGS = 7
# A round may take so many times what its links allow, beside ANSWER_S.
SLACK = 10.0
COMPARES = (
    "Hosts are network namespaces of this machine, joined by a bridge; each has one full-duplex link, "
    "limited by tc tbf both ways, of packets with their headers. All of them are producers and consumers "
    "at once: each holds rows of a tensor in its arena and wants its slice of the columns of all rows, "
    "all to all. direct: one Dispatcher.read over UCX, of every other host's arena, which a process next "
    "to the producer serves. central: a controller on host 0, with that host's link, to which all others "
    "send frames over TCP and which forwards every frame at once, in and out at the same time; what its "
    "own host holds or wants does not pass its link twice. This favours the controller: the paper's "
    "gathers everything before it scatters. The time is from the moment when all hosts may start until "
    "the last has its slices, in a buffer touched before; every element is checked afterwards; medians "
    "over the rounds, both ways in turn. limit: what such links allow at best, of payload alone: (hosts - "
    "1) / hosts of a host's bytes directly, (hosts - 1) times that through the controller. "
    "direct_of_limit: that time over the measured one. Sums are not checked on the way. Descriptors are "
    "published before the clock starts and fetched over a unix socket, not over the links. cores_busy: of "
    "all cores' time, what any process used meanwhile. rates: the smallest size, directly, over links of "
    "twice the rate each time, until less than 0.9 of what they allow is reached: the cores no longer "
    "carry it."
)


def figure(settings: PaperSettings) -> PaperFigure:
    """Raises ConfigError for a number of hosts that is no power of two, and for less than a row."""
    curve(settings.hosts)
    for size in settings.sizes_mib:
        Pattern.of(size)
    judged = (
        settings.hosts == GOAL_HOSTS
        and settings.gbps >= GOAL_GBPS
        and settings.rounds >= GOAL_ROUNDS
        and set(FIG4_MIB) <= set(settings.sizes_mib)
    )
    chosen = {name: asdict(settings)[name] for name in ("hosts", "gbps", "sizes_mib", "rounds")}
    return PaperFigure("fig4", chosen, lambda: asyncio.run(measure(settings)), GOALS if judged else {})


async def measure(settings: PaperSettings) -> dict[str, Any]:
    """Raises RigUnavailable where namespaces or their links are not permitted."""
    link = Link(settings.gbps)
    rows = {size: Pattern.of(size).rows for size in sorted(settings.sizes_mib)}
    phase(f"starting {settings.hosts} hosts")
    with network(settings.hosts, link) as rig:
        async with AsyncExitStack() as stack:
            places = [HostPlace(ARENAS, host.enter, {"bind": host.address}) for host in rig.hosts]
            fleet = await Fleet.start(stack, places, max(rows.values()))
            exchanges = HostExchanges(rig, fleet)
            sizes = [await exchanges.size(rows[size], settings.rounds) for size in rows]
            rates = await exchanges.rates(min(rows.values()), settings.rounds)
    return {"compares": COMPARES, "mtu_bytes": MTU_BYTES, **summary(settings.hosts, sizes, rates)}


class HostExchanges:
    """Rounds of a fleet on a rig."""

    def __init__(self, rig: Rig, fleet: Fleet) -> None:
        self._rig = rig
        self._fleet = fleet
        self._hosts = len(rig.hosts)

    async def size(self, rows: int, rounds: int) -> dict[str, Any]:
        """Both ways in turn, at so many rows a host."""
        mib = rows * ROW_BYTES / MIB
        # Connections, plans and pages.
        await self._round("direct", rows)
        taken: dict[str, list[ExchangeRound]] = {way: [] for way in WAYS}
        crossed: dict[str, int] = {}
        dropped = sum(host.dropped for host in self._rig.carried())
        for number in range(rounds):
            for way in WAYS:
                phase(f"{mib:g} MiB a host, {way}", number, rounds)
                before = self._rig.carried()
                taken[way].append(await self._round(way, rows))
                links = zip(self._rig.carried(), before, strict=True)
                crossed[f"{way}_busiest_link_bytes"] = max(
                    after.received_bytes - then.received_bytes for after, then in links
                )
        figures = figures_of(self._hosts, rows * ROW_BYTES, self._rig.link, taken)
        lost = sum(host.dropped for host in self._rig.carried()) - dropped
        return {"mib": mib, **figures, **crossed, "dropped_packets": lost}

    async def rates(self, rows: int, rounds: int) -> list[dict[str, Any]]:
        """Direct reads over links of twice the rate each time, until the cores no longer carry it."""
        first, tried = self._rig.link, []
        for doubling in range(DOUBLINGS):
            link = Link(first.gbps * 2**doubling)
            self._rig.shape(link)
            phase(f"direct reads at {link.gbps:g} Gbit/s", doubling, DOUBLINGS)
            taken = {"direct": [await self._round("direct", rows) for _ in range(rounds)]}
            figures = figures_of(self._hosts, rows * ROW_BYTES, link, taken)
            tried.append({"gbps": link.gbps, **figures})
            if figures["direct_of_limit"] < GOALS["direct_of_limit"]:
                break
        self._rig.shape(first)
        return tried

    async def _round(self, way: str, rows: int) -> ExchangeRound:
        limit_s = LIMITS[way](self._hosts, rows * ROW_BYTES, self._rig.link.bytes_per_s)
        return await self._fleet.exchange(Plan(self._hosts, rows), way, answer_s=ANSWER_S + SLACK * limit_s)


def figures_of(
    hosts: int, host_bytes: int, link: Link, taken: dict[str, list[ExchangeRound]]
) -> dict[str, Any]:
    """Per way: the median seconds, every round's, the links' limit and the share of it; and their ratio."""
    figures: dict[str, Any] = {}
    for way, rounds in taken.items():
        seconds = statistics.median(each.seconds for each in rounds)
        limit_s = LIMITS[way](hosts, host_bytes, link.bytes_per_s)
        figures |= {
            f"{way}_s": round(seconds, 4),
            f"{way}_rounds_s": [round(each.seconds, 4) for each in rounds],
            f"{way}_limit_s": round(limit_s, 4),
            f"{way}_of_limit": round(limit_s / seconds, 3),
            f"{way}_cores_busy": round(statistics.median(each.cores_busy for each in rounds), 2),
        }
    if set(WAYS) <= taken.keys():
        figures["speedup"] = round(figures["central_s"] / figures["direct_s"], 2)
    return figures


def summary(hosts: int, sizes: list[dict[str, Any]], rates: list[dict[str, Any]]) -> dict[str, Any]:
    """dispatch_speedup, direct_of_limit: of the worst size. carried_gbps: the largest rate that was carried;
    null if none was. not_carried_gbps: the first that was not; null if all were."""
    enough = GOALS["direct_of_limit"]
    carried = [rate["gbps"] for rate in rates if rate["direct_of_limit"] >= enough]
    return {
        "dispatch_speedup": min(size["speedup"] for size in sizes),
        "limit": hosts - 1,
        "direct_of_limit": min(size["direct_of_limit"] for size in sizes),
        "carried_gbps": max(carried, default=None),
        "not_carried_gbps": next((rate["gbps"] for rate in rates if rate["direct_of_limit"] < enough), None),
        "sizes": [{**size, "paper_speedup": PAPER_SPEEDUPS.get(size["mib"])} for size in sizes],
        "rates": rates,
    }
