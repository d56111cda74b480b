"""The same environment behind OpenEnv servers, played by OpenEnv's own client (openenv_side.py)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.gateway.measure import HOSTS, OBSERVATION_BYTES, STEPS_PER_EPISODE, WARM_S, Work
from benchmarks.role import Role

SIDE = "benchmarks.gateway.openenv_side"


async def measure(python: str, work: Work) -> dict[str, Any]:
    """openenv_steps_per_s and its latencies; None and why without a Python that has openenv."""
    if not python:
        return {"openenv_steps_per_s": None, "openenv_absent": "no --openenv-python was given"}
    async with AsyncExitStack() as stack:
        addresses = []
        try:
            for _ in range(HOSTS):
                server, said = await Role.start(
                    SIDE, python=python, role="server", bytes=OBSERVATION_BYTES, sessions=work.sessions
                )
                stack.push_async_callback(server.stop)
                addresses.append(said["address"])
            player, said = await Role.start(SIDE, python=python, role="player", addresses=addresses)
            stack.push_async_callback(player.stop)
        except (OSError, RuntimeError, TimeoutError) as error:
            return {"openenv_steps_per_s": None, "openenv_absent": f"{python}: {error}"}
        rounds = []
        for _ in range(work.rounds):
            found = await player.ask(
                sessions=work.sessions, warm_s=WARM_S, seconds=work.seconds, steps=STEPS_PER_EPISODE
            )
            rounds.append(found)
            await asyncio.sleep(0.2)
    middle = sorted(rounds, key=lambda found: found["steps_per_s"])[len(rounds) // 2]
    names = ("steps_per_s", "p50_ms", "p99_ms")
    return {
        "openenv_version": said["version"],
        **{f"openenv_{name}": round(middle[name], 3) for name in names},
        "openenv_rounds": rounds,
    }
