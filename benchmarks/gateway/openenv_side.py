"""OpenEnv's side: servers of the same environment, and its own client; runs in an environment of its own.

Started by openenv.py, told what to do as JSON lines; it imports nothing else of this repository. In
OpenEnv's favour: the environment's methods are coroutines, so that the server needs no thread for a
step; the client takes plain dictionaries, so that it builds no models.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import socket
import sys
import time
from typing import Any

CONNECT_S = 60.0


def answer(**fields: Any) -> None:
    """Writes one JSON line to the benchmark."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def application(text_bytes: int, sessions: int) -> Any:
    """The server's ASGI application."""
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class EchoAction(Action):
        text: str

    class EchoObservation(Observation):
        text: str

    class Echo(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed: Any = None, episode_id: Any = None, **task: Any) -> EchoObservation:
            self.left = int(task["steps"])
            self.text = "x" * text_bytes
            return EchoObservation(text=self.text)

        def step(self, action: EchoAction, timeout_s: Any = None, **given: Any) -> EchoObservation:
            self.left -= 1
            return EchoObservation(text=self.text, reward=0.0, done=self.left == 0)

        async def reset_async(self, seed: Any = None, episode_id: Any = None, **task: Any) -> Any:
            return self.reset(seed, episode_id, **task)

        async def step_async(self, action: EchoAction, timeout_s: Any = None, **given: Any) -> Any:
            return self.step(action)

        @property
        def state(self) -> State:
            return State()

    return create_fastapi_app(Echo, EchoAction, EchoObservation, max_concurrent_envs=sessions)


async def be_server(role: dict[str, Any]) -> None:
    """Serves until stdin ends."""
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0), backlog=1_024)
    config = uvicorn.Config(
        application(role["bytes"], role["sessions"]), log_level="error", ws_ping_interval=None
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    # Who connects before the server has started waits in the socket's queue.
    answer(address=f"ws://127.0.0.1:{listening.getsockname()[1]}")
    await asyncio.to_thread(sys.stdin.readline)
    server.should_exit = True
    await serving


async def be_player(role: dict[str, Any]) -> None:
    """Plays as each line says, until stdin ends."""
    from openenv.core.generic_client import GenericEnvClient

    answer(version=importlib.metadata.version("openenv"))
    while line := await asyncio.to_thread(sys.stdin.readline):
        answer(**await play(GenericEnvClient, role["addresses"], **json.loads(line)))


async def play(
    client: Any, addresses: list[str], sessions: int, warm_s: float, seconds: float, steps: int
) -> dict[str, Any]:
    """Steps per second and latencies of closed loops, each session with its own client and connection."""
    latencies: list[float] = []
    connecting = asyncio.Semaphore(32)
    all_connected = asyncio.Barrier(sessions + 1)
    begins = ends = 0.0

    async def loop(number: int) -> None:
        env = client(base_url=addresses[number % len(addresses)], websocket_ping_interval_s=None)
        try:
            async with connecting:
                await env.connect()
            await all_connected.wait()
            # The clock ends the loop, because the client's wait for an answer may swallow a cancellation.
            while (now := time.monotonic()) < ends:
                result = await env.reset(steps=steps)
                while now < ends and not result.done:
                    requested_s = time.monotonic()
                    result = await env.step({"text": "go"})
                    now = time.monotonic()
                    if begins <= requested_s and now < ends:
                        latencies.append(now - requested_s)
        finally:
            await env.close()

    loops = [asyncio.create_task(loop(number)) for number in range(sessions)]
    async with asyncio.timeout(CONNECT_S):
        while all_connected.n_waiting < sessions:
            await asyncio.sleep(0.05)
            for task in loops:
                if task.done():
                    task.result()
        begins = time.monotonic() + warm_s
        ends = begins + seconds
        await all_connected.wait()
    await asyncio.wait(loops, timeout=warm_s + seconds + CONNECT_S)
    took_s, ordered = seconds, sorted(latencies)
    return {
        "steps_per_s": len(ordered) / took_s,
        "p50_ms": ordered[len(ordered) // 2] * 1e3 if ordered else 0.0,
        "p99_ms": ordered[int(0.99 * len(ordered))] * 1e3 if ordered else 0.0,
    }


def main() -> None:
    """Be the role that the first line names."""
    role = json.loads(sys.stdin.readline())
    run = {"server": be_server, "player": be_player}[role["role"]](role)
    try:
        import uvloop
    except ImportError:
        asyncio.run(run)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run)


if __name__ == "__main__":
    main()
