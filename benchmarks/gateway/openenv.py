"""The same environment behind OpenEnv servers, played by OpenEnv's own client (openenv_side.py)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.gateway.measure import HOSTS, OBSERVATION_BYTES, STEPS_PER_EPISODE, WARM_S, Work
from benchmarks.role import Role
from earl.errors import EarlError

SIDE = "benchmarks.gateway.openenv_side"
# Importing its server brings a web interface, which takes long.
START_S = 240.0


async def measure(python: str, work: Work) -> dict[str, Any]:
    """openenv_steps_per_s and its latencies; None and why without a Python that has openenv."""
    if not python:
        return {"openenv_steps_per_s": None, "openenv_absent": "no --openenv-python was given"}
    async with AsyncExitStack() as stack:

        async def started(**role: Any) -> tuple[Role, dict[str, Any]]:
            made, said = await Role.start(SIDE, python=python, start_s=START_S, **role)
            stack.push_async_callback(made.stop)
            return made, said

        try:
            server = {"role": "server", "bytes": OBSERVATION_BYTES, "sessions": work.sessions}
            servers = await asyncio.gather(*(started(**server) for _ in range(HOSTS)))
            addresses = [said["address"] for _, said in servers]
            player, said = await started(role="player", addresses=addresses)
        except (OSError, EarlError) as error:
            return {"openenv_steps_per_s": None, "openenv_absent": f"{python}: {error}"}
        rounds = []
        for _ in range(work.rounds):
            found = await player.ask(
                sessions=work.sessions, warm_s=WARM_S, seconds=work.seconds, steps=STEPS_PER_EPISODE
            )
            rounds.append(found)
            await asyncio.sleep(0.2)
    middle = sorted(rounds, key=lambda found: found["steps_per_s"])[(len(rounds) - 1) // 2]
    names = ("steps_per_s", "p50_ms", "p99_ms")
    return {
        "openenv_version": said["version"],
        **{f"openenv_{name}": round(middle[name], 3) for name in names},
        "openenv_rounds": rounds,
    }
