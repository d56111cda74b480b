"""The parts of the benchmark, each with its own processes."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.children import MeasurementWrong
from benchmarks.gateway.fleet import GatewayFleet, fleet
from benchmarks.mixture_cost import in_turns
from benchmarks.record.progress import counted, phase
from benchmarks.role import RoleProcess

HOSTS = 4
STEPS_PER_EPISODE = 256
OBSERVATION_BYTES = 1_024
WARM_S = 2.0
DRILL_SESSIONS = 32


@dataclass(frozen=True, slots=True)
class GatewayWork:
    """The load. sessions: stepping at once. seconds: length of an interval. rounds: of each comparison."""

    sessions: int
    seconds: float
    rounds: int
    open_sessions: int


@asynccontextmanager
async def playing(fleet: GatewayFleet) -> AsyncIterator[RoleProcess]:
    """Starts the client process, and stops it at the end of the block."""
    role, _ = await RoleProcess.start(
        "benchmarks.gateway.player",
        role="player",
        address=fleet.gateway.address,
        bytes=OBSERVATION_BYTES,
    )
    try:
        yield role
    finally:
        await role.stop()


async def _play(
    role: RoleProcess, work: GatewayWork, seconds: float, environments: int = 1
) -> dict[str, Any]:
    return await role.ask(
        do="play", sessions=work.sessions, warm_s=WARM_S, seconds=seconds, steps=STEPS_PER_EPISODE,
        environments=environments,
    )  # fmt: skip


async def throughput(directory: Path, work: GatewayWork) -> dict[str, Any]:
    """Figures of sessions that step all the time, then of sessions that are only open."""
    phase("throughput: starting the processes")
    async with fleet(directory, HOSTS, work.open_sessions) as made, playing(made) as player:
        rounds: list[dict[str, Any]] = []
        for _ in counted("throughput: rounds", range(work.rounds)):
            before = made.gateway.cpu_s, sum(host.cpu_s for host in made.hosts.values())
            figures = await _play(player, work, work.seconds)
            after = made.gateway.cpu_s, sum(host.cpu_s for host in made.hosts.values())
            # The processes' own clocks run through the warm-up too.
            share = figures["seconds"] / (figures["seconds"] + WARM_S) / max(1, figures["steps"]) * 1e6
            figures["cpu_us_per_step"] = {
                "client": round(figures.pop("client_cpu_s") / max(1, figures["steps"]) * 1e6, 1),
                "gateway": round((after[0] - before[0]) * share, 1),
                "hosts": round((after[1] - before[1]) * share, 1),
            }
            rounds.append(figures)
        middle = sorted(rounds, key=lambda figures: figures["steps_per_s"])[(len(rounds) - 1) // 2]
        result = {
            **{name: round(middle[name], 3) for name in ("steps_per_s", "p50_ms", "p99_ms")},
            "cpu_us_per_step": middle["cpu_us_per_step"],
            "rounds": rounds,
        }
        if work.open_sessions:
            phase(f"opening {work.open_sessions:,} sessions")
            idle_mib = made.gateway.rss_mib
            opened = await player.ask(do="open", sessions=work.open_sessions)
            result["open_sessions"] = opened["sessions"]
            result["open_sessions_s"] = round(opened["seconds"], 2)
            result["rss_mib"] = round(made.gateway.rss_mib, 1)
            result["rss_before_mib"] = round(idle_mib, 1)
            await player.ask(do="close")
        return result


async def mixture(directory: Path, work: GatewayWork, environments: int, rounds: int) -> dict[str, Any]:
    """Steps a second of sessions that are spread over several environments, over those of one, in turns.

    Every measurement has its own processes. Raises MeasurementWrong if a session failed in one of them.
    """

    async def measured(count: int, number: int) -> float:
        place = directory / f"{number}-{count}"
        async with fleet(place, HOSTS, work.sessions, count) as made, playing(made) as player:
            figures = await _play(player, work, work.seconds, count)
        if figures["failed"]:
            raise MeasurementWrong(
                f"sessions failed with {count} environments: {figures['failed']}",
                "use fewer --sessions, or a machine with less beside it",
            )
        return figures["steps_per_s"]

    return await in_turns(measured, environments, rounds)


async def drills(directory: Path) -> dict[str, Any]:
    """Figures of a host that is killed and of another that is frozen."""
    phase("drills: starting the processes")
    async with fleet(directory, HOSTS, 1_024) as made, playing(made) as player:
        figures = {}
        for name, host, send in (("killed", "host-0", "SIGKILL"), ("frozen", "host-1", "SIGSTOP")):
            phase(f"drill of a host that is {name}")
            drill = await player.ask(
                do="drill", sessions=DRILL_SESSIONS, pid=made.hosts[host].pid, host=host, send=send
            )
            figures[f"{name}_noticed_s"] = drill["noticed_s"] and round(drill.pop("noticed_s"), 3)
            figures[name] = drill
        return figures


async def isolation(directory: Path, work: GatewayWork) -> dict[str, Any]:
    """The throughput of three hosts beside a fourth that works, and beside a fourth that fails every step.

    Every host has just its share of the sessions as capacity: the failing host's sessions find no other host.
    """
    good = [f"host-{number}" for number in range(HOSTS - 1)]
    pairs: list[dict[str, float]] = []
    phase("isolation: starting the processes")
    async with fleet(directory, HOSTS - 1, work.sessions // HOSTS) as made, playing(made) as player:
        for number in counted("isolation: rounds", range(work.rounds)):
            pair: dict[str, Any] = {}
            # In turn, so that a drift of the machine favours neither.
            for fails in (False, True) if number % 2 == 0 else (True, False):
                kind = "failing" if fails else "working"
                # A new name, because a quarantine is for a host's name.
                await made.add(f"{kind}-{number}", fails=fails)
                figures = await _play(player, work, work.seconds)
                await made.remove(f"{kind}-{number}")
                pair[kind] = sum(figures["by_host"].get(name, 0.0) for name in good)
                if fails:
                    pair["failed"] = figures["failed"]
            pairs.append(pair)
    losses = [1 - pair["failing"] / pair["working"] for pair in pairs]
    return {"isolation_loss": round(statistics.median(losses), 4), "isolation_rounds": pairs}
