"""The client process of the benchmark, which plays many sessions through one stream.

play   closed loops: each session steps as soon as it has its answer, and opens the next episode
open   sessions that stay open, each after one step
drill  a host is killed or frozen under sessions that step, that have not stepped and that open
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections import Counter
from typing import Any

from benchmarks.children import within
from benchmarks.dispatch.lines import answer, commands, main
from benchmarks.gateway.environment import NAME, names
from earl.env import GatewayClient, Limits, Session
from earl.errors import EarlError

LIMITS = Limits(queue_s=300.0, reset_s=60.0, step_s=60.0, episode_s=3_600.0)
OPENING_AT_ONCE = 256
# Steps of a session in a drill: more than it can take.
ENDLESS = 1 << 30
# A session that steps in a drill does so this often.
DRILL_STEP_S = 0.01
DRILL_BOUND_S = 40.0


def quantile(values: list[float], share: float) -> float:
    """The value at `share` of sorted values, 0.0 where there are none."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


class Player:
    """Plays against one gateway. observation_bytes: the size of every observation."""

    def __init__(self, address: str, observation_bytes: int) -> None:
        self._client = GatewayClient(address)
        self._bytes = observation_bytes
        self._held: list[Session] = []

    async def _opened(self, steps: int, name: str = NAME) -> Session:
        return await self._client.open(name, {"bytes": self._bytes, "steps": steps}, 0, LIMITS)

    async def play(
        self, sessions: int, warm_s: float, seconds: float, steps: int, environments: int = 1
    ) -> dict[str, Any]:
        """Steps per second, by host too, and latencies, over `seconds` after warm_s; failures also before.

        environments: over which the sessions are spread evenly.
        """
        latencies: list[float] = []
        by_host: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        begins = time.monotonic() + warm_s

        async def loop(name: str) -> None:
            while True:
                session: Session | None = None
                try:
                    session = await self._opened(steps, name)
                    while not session.done:
                        requested_s = time.monotonic()
                        outcome = await session.step("go")
                        now = time.monotonic()
                        if outcome.message:
                            failed[outcome.message.partition(":")[0]] += 1
                        elif requested_s >= begins:
                            latencies.append(now - requested_s)
                            by_host[outcome.observation.text[:16].strip()] += 1
                except EarlError as error:
                    failed[type(error).__name__] += 1
                finally:
                    if session is not None:
                        await session.close()

        played = names(environments)
        loops = [asyncio.create_task(loop(played[number % environments])) for number in range(sessions)]
        await asyncio.sleep(warm_s)
        used_s = _cpu_s()
        await asyncio.sleep(max(0.0, begins + seconds - time.monotonic()))
        took_s = time.monotonic() - begins
        used_s = _cpu_s() - used_s
        for task in loops:
            task.cancel()
        await asyncio.wait(loops)
        latencies.sort()
        return {
            "steps": len(latencies),
            "seconds": took_s,
            "steps_per_s": len(latencies) / took_s,
            "p50_ms": quantile(latencies, 0.5) * 1e3,
            "p99_ms": quantile(latencies, 0.99) * 1e3,
            "by_host": {host: count / took_s for host, count in sorted(by_host.items())},
            "failed": dict(failed),
            "client_cpu_s": used_s,
        }

    async def open(self, sessions: int) -> dict[str, Any]:
        """Opens sessions, one step each, and keeps them."""
        gate = asyncio.Semaphore(OPENING_AT_ONCE)

        async def open_session() -> Session:
            async with gate:
                session = await self._opened(ENDLESS)
                await session.step("go")
                return session

        began = time.monotonic()
        self._held += await asyncio.gather(*(open_session() for _ in range(sessions)))
        return {"sessions": len(self._held), "seconds": time.monotonic() - began}

    async def close(self) -> dict[str, Any]:
        """Closes what `open` kept."""
        for session in self._held:
            await session.close()
        self._held.clear()
        await self._client.environments()
        return {}

    async def drill(self, sessions: int, pid: int, host: str, send: str) -> dict[str, Any]:
        """Sends a signal to a host and sees what becomes of three groups of `sessions` sessions each.

        noticed_s: from the signal until the last session that was stepping on that host has ended.
        """
        fresh = [await self._opened(ENDLESS) for _ in range(sessions)]
        lost = asyncio.Event()
        ended: list[float] = []
        kinds: Counter[str] = Counter()
        sent = 0.0

        async def stepping() -> None:
            """Steps until the host is lost; those on others are counted as untouched."""
            session = await self._opened(ENDLESS)
            on = ""
            try:
                while not lost.is_set():
                    on = (await session.step("go")).observation.text[:16].strip()
                    await asyncio.sleep(DRILL_STEP_S)
                # What waits for its answer on the lost host is ended in the same moment.
                await session.step("go")
                kinds["untouched" if on != host else "came_back"] += 1
            except EarlError as error:
                kinds[type(error).__name__] += 1
                ended.append(time.monotonic() - sent)
                lost.set()
            await session.close()

        tasks = [asyncio.create_task(stepping()) for _ in range(sessions)]
        await asyncio.sleep(0.5)
        sent = time.monotonic()
        os.kill(pid, getattr(signal, send))
        opening = [asyncio.create_task(self._opened(ENDLESS)) for _ in range(sessions)]
        async with within(DRILL_BOUND_S, f"what {send} did to {sessions} sessions"):
            await asyncio.gather(*tasks)
            opened = await asyncio.gather(*opening)
            opened_s = time.monotonic() - sent
            went_on: Counter[str] = Counter()
            for group, members in (("fresh", fresh), ("opening", opened)):
                for session in members:
                    try:
                        await session.step("go")
                        went_on[f"{group}_went_on"] += 1
                    except EarlError as error:
                        went_on[f"{group}_{type(error).__name__}"] += 1
                    await session.close()
        return {
            "noticed_s": max(ended, default=None),
            "stepping": dict(kinds),
            "others": dict(went_on),
            "last_opened_s": opened_s,
        }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def serve(role: dict[str, Any]) -> None:
    """Does what each line says."""
    player = Player(role["address"], role["bytes"])
    answer(ready=True)
    async for work in commands():
        do = work.pop("do")
        answer(**await getattr(player, do)(**work))


if __name__ == "__main__":
    main({"player": serve})
