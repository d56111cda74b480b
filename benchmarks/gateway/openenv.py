"""The same environment behind OpenEnv servers, played by OpenEnv's own client (openenv_side.py)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.gateway.measure import HOSTS, OBSERVATION_BYTES, STEPS_PER_EPISODE, WARM_S, GatewayWork
from benchmarks.record.progress import counted, phase
from benchmarks.role import RoleProcess
from earl.errors import EarlError

SIDE = "benchmarks.gateway.openenv_side"
# Importing its server brings a web interface, which takes long.
START_S = 240.0


async def measure(python: str, work: GatewayWork) -> dict[str, Any]:
    """openenv_steps_per_s and its latencies; None and the reason without a Python that has openenv."""
    if not python:
        return {"openenv_steps_per_s": None, "openenv_absent": "no --openenv-python was given"}
    phase("openenv: starting the processes")
    async with AsyncExitStack() as stack:

        async def started(**role: Any) -> tuple[RoleProcess, dict[str, Any]]:
            made, opened = await RoleProcess.start(SIDE, python=python, start_s=START_S, **role)
            stack.push_async_callback(made.stop)
            return made, opened

        try:
            server = {"role": "server", "bytes": OBSERVATION_BYTES, "sessions": work.sessions}
            servers = await asyncio.gather(*(started(**server) for _ in range(HOSTS)))
            addresses = [opened["address"] for _, opened in servers]
            player, opened = await started(role="player", addresses=addresses)
        except (OSError, EarlError) as error:
            return {"openenv_steps_per_s": None, "openenv_absent": f"{python}: {error}"}
        rounds = []
        for _ in counted("openenv: rounds", range(work.rounds)):
            figures = await player.ask(
                sessions=work.sessions, warm_s=WARM_S, seconds=work.seconds, steps=STEPS_PER_EPISODE
            )
            rounds.append(figures)
            await asyncio.sleep(0.2)
    middle = sorted(rounds, key=lambda figures: figures["steps_per_s"])[(len(rounds) - 1) // 2]
    names = ("steps_per_s", "p50_ms", "p99_ms")
    return {
        "openenv_version": opened["version"],
        **{f"openenv_{name}": round(middle[name], 3) for name in names},
        "openenv_rounds": rounds,
    }
