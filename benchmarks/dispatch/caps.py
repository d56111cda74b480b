"""Hosts behind capped network cards: EARL's direct reads against one controller, over 2, 4, 8, 16 hosts."""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.dispatch.fleet import WAYS, Fleet, HostPlace
from benchmarks.dispatch.hosts import Plan
from benchmarks.dispatch.nic import Nics, bytes_per_second, central_seconds, direct_seconds
from benchmarks.dispatch.pattern import MIB, ROW_BYTES
from benchmarks.record.progress import counted, phase
from earl.errors import ConfigError

WARM_UP = 1
COMPARES = (
    "capped: hosts, a process each, every one with one full-duplex network card of the rate named, all of "
    "them both producers and consumers, as the paper's workers are: each holds rows of a tensor and wants "
    "its slice of the columns of all rows, all to all. A card is two token buckets, egress and ingress, "
    "shared by whatever the host sends and receives; bytes really move, over sockets on loopback. UCX's own "
    "sockets cannot be put behind a proxy, so the buckets stand around the application's transport: in "
    "direct, a slab of what a host reads queues for every producer's egress and the reader's ingress; "
    "Dispatcher.read asks for it over UCX when its first byte may enter the reader's card, and it counts as "
    "read when that is done and its last byte has passed all these links; in central, a frame passes the "
    "sender's egress, the controller's ingress, the controller's egress and the receiver's ingress, at each "
    "before the next. The controller stands on one of the hosts and uses its card, which favours it: what "
    "that host holds or wants passes once or not at all, and nothing that its owner keeps is sent. It "
    "forwards frame by frame, in and out at once. limit: what such cards allow at best, (hosts - 1) times. "
    "Payload is counted, not headers; descriptors are published before the clock starts. cores_busy: the "
    "fraction of all cores' time that any process used meanwhile; where it nears 1 the machine, not "
    "the cards, sets the time."
)


def curve(most: int) -> list[int]:
    """2, 4, 8 ... `most`. Raises ConfigError when that is no power of two: columns are split evenly."""
    hosts = [1 << power for power in range(1, most.bit_length())]
    if most not in hosts:
        raise ConfigError(f"--hosts {most} is no power of two", "give 2, 4, 8, 16, 32 or 64")
    return hosts


def figures(hosts: int, host_bytes: int, rate: float, seconds: dict[str, float]) -> dict[str, Any]:
    """Figures for one number of hosts: seconds as measured and as the cards allow, and their ratio."""
    direct_limit = direct_seconds(hosts, host_bytes, rate)
    central_limit = central_seconds(hosts, host_bytes, rate)
    speedup, limit = seconds["central"] / seconds["direct"], central_limit / direct_limit
    return {
        "hosts": hosts,
        "direct_s": round(seconds["direct"], 4),
        "central_s": round(seconds["central"], 4),
        "direct_limit_s": round(direct_limit, 4),
        "central_limit_s": round(central_limit, 4),
        "speedup": round(speedup, 3),
        "limit": round(limit, 3),
        "within_limit_fraction": round(speedup / limit, 3),
    }


async def measure(most: int, gbps: float, host_mib: float, rounds: int) -> dict[str, Any]:
    """The curve up to `most` hosts; both ways in turn, medians over the rounds."""
    phase(f"capped: starting {most} hosts")
    rate, rows = bytes_per_second(gbps), int(host_mib * MIB) // ROW_BYTES
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-")))
        arenas = stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-", dir="/dev/shm"))
        path = directory / "nics"
        Nics.create(path, most)
        nics = Nics(path, rate)
        stack.callback(nics.close)
        place = HostPlace(arenas, role={"nics": str(path), "rate": rate})
        fleet = await Fleet.start(stack, [place] * most, rows)
        points: list[dict[str, Any]] = []
        for hosts in curve(most):
            plan = Plan(hosts, rows)
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            carried: dict[str, list[int]] = {}
            load: dict[str, list[float]] = {way: [] for way in WAYS}
            for turn in counted(f"capped: rounds of {hosts} hosts", range(rounds + WARM_UP)):
                for way in WAYS:
                    took = await fleet.exchange(plan, way, nics.start)
                    if turn >= WARM_UP:
                        seconds[way].append(took.seconds)
                        load[way].append(took.cores_busy)
                        carried[f"{way}_busiest_card_bytes"] = nics.carried()
            point = figures(
                hosts, rows * ROW_BYTES, rate, {way: statistics.median(seconds[way]) for way in WAYS}
            )
            loads = {f"{way}_cores_busy": round(statistics.median(load[way]), 2) for way in WAYS}
            points.append({**point, **carried, **loads})
            sys.stderr.write(f"{hosts} hosts: {points[-1]}\n")
    return {
        "nic_gbps": gbps,
        "host_mib": host_mib,
        f"capped_speedup_{most}_hosts": points[-1]["speedup"],
        "within_limit_fraction": points[-1]["within_limit_fraction"],
        "curve": points,
    }
