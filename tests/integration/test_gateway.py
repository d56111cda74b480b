"""Gateway and env host as the launcher starts them: whole games, health, reflection, bad input, SIGTERM."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from earl import errors
from earl.config.environment import GatewayConfig
from earl.config.run import RunConfig
from earl.env import Ending, GatewayClient, Limits
from earl.obs.metrics import read_lines
from earl.rpc import Client
from earl.stack.ports import free_port
from earl.v1 import env_pb2, env_pb2_grpc

LIMITS = Limits(queue_s=30, reset_s=20, step_s=20, episode_s=60)
SERVICE = "earl.v1.EnvGatewayService"
OPEN_SPIEL = "earl.env.adapters.open_spiel:environments"


def write_run(
    directory: Path, *, bind="127.0.0.1:0", serve=OPEN_SPIEL, name="open_spiel/tic_tac_toe"
) -> Path:
    config = RunConfig.model_validate(
        {
            "name": "test",
            "environment": {"name": name, "serve": serve, "sessions_per_host": 32},
            "gateway": {"bind": bind},
        }
    )
    path = directory / "run.json"
    path.write_text(config.model_dump_json())
    return path


def start(module: str, run: Path, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", module, "--run", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"} | environment,
    )


def address_of(process: subprocess.Popen) -> str:
    assert process.stdout and process.stderr
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return json.loads(line)["address"]


def finished(process: subprocess.Popen) -> tuple[int, str]:
    """(exit code, stderr without log lines)."""
    _, err = process.communicate(timeout=60)
    return process.returncode, "\n".join(line for line in err.splitlines() if not line.startswith("{"))


@contextmanager
def stack(directory: Path, *, served: dict[str, str] | None = None, **environment: str):
    """(gateway process, host process, gateway's address). served: what `write_run` takes."""
    run = write_run(directory, **(served or {}))
    gateway = start("services.env_gateway", run, **environment)
    processes = [gateway]
    try:
        address = address_of(gateway)
        host = start("earl.env.host", run, EARL_GATEWAY=address, **environment)
        processes.append(host)
        assert address_of(host) == address
        yield gateway, host, address
    finally:
        for process in reversed(processes):
            if process.returncode is None:
                process.kill()
                process.communicate()


async def play(client: GatewayClient, name: str, task: dict[str, Any], seed: int):
    rng = random.Random(seed)
    session = await client.open(name, task, seed, LIMITS)
    seen = [session.observation.text]
    while True:
        outcome = await session.step(rng.choice(session.observation.legal_actions))
        seen.append(outcome.observation.text)
        if outcome.done:
            await session.close()
            return outcome, seen


async def test_games_through_real_processes(tmp_path):
    with stack(tmp_path) as (gateway, host, address):
        client = GatewayClient(address)
        assert await client.environments() == {"open_spiel/connect_four": 32, "open_spiel/tic_tac_toe": 32}
        games = [
            (name, {"opponent": opponent, "player": seed % 2}, seed)
            for name, opponent, count in (
                ("open_spiel/tic_tac_toe", "random", 60),
                ("open_spiel/tic_tac_toe", "minimax", 20),
                ("open_spiel/connect_four", "random", 20),
                ("open_spiel/connect_four", "minimax", 4),
            )
            for seed in range(count)
        ]
        played = await asyncio.gather(*(play(client, *game) for game in games))
        for (name, task, _), (outcome, _) in zip(games, played, strict=True):
            assert outcome.ending is Ending.OK
            metrics = outcome.metrics
            assert metrics["win"] + metrics["draw"] + metrics["loss"] == 1 and metrics["illegal"] == 0
            assert outcome.reward == metrics["win"] - metrics["loss"]
            if "tic_tac_toe" in name and task["opponent"] == "minimax":
                assert metrics["win"] == 0
        again = await asyncio.gather(*(play(client, *game) for game in games[:20]))
        assert [seen for _, seen in again] == [seen for _, seen in played[:20]]
        illegal = await client.open("open_spiel/tic_tac_toe", {"opponent": "random"}, 1, LIMITS)
        outcome = await illegal.step("no move at all")
        assert (outcome.ending, outcome.reward, outcome.metrics["illegal"]) == (Ending.OK, -1.0, 1.0)
        with pytest.raises(errors.EnvironmentFailure, match="oponent"):
            await client.open("open_spiel/tic_tac_toe", {"oponent": "random"}, 1, LIMITS)
        await client.close()
        host.send_signal(signal.SIGTERM)
        assert finished(host) == (0, "")
        gateway.send_signal(signal.SIGTERM)
        assert finished(gateway) == (0, "")


async def test_faults_and_quarantines_are_in_the_runs_directory(tmp_path):
    with stack(tmp_path) as (gateway, _, address):
        client = GatewayClient(address)
        await play(client, "open_spiel/connect_four", {}, 1)
        for seed in range(GatewayConfig().quarantine_faults):
            with pytest.raises(errors.EnvironmentFailure, match="oponent"):
                await client.open("open_spiel/tic_tac_toe", {"oponent": "random"}, seed, LIMITS)
        await client.close()
        gateway.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(finished, gateway) == (0, "")
    lines = list(read_lines(tmp_path / "faults.jsonl"))
    assert {line["environment"] for line in lines} == {"open_spiel/tic_tac_toe"}
    [quarantine] = [line for line in lines if "host" in line]
    told = [line for line in lines if "faults" in line]
    assert sum(line["faults"] for line in told) == GatewayConfig().quarantine_faults
    assert "oponent" in quarantine["reason"] and "oponent" in told[-1]["last"]


async def test_health_reflection_and_token(tmp_path):
    with stack(tmp_path, EARL_TOKEN="secret") as (_, _, address):
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            for name in ("", SERVICE):
                response = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)
                assert response.status == health_pb2.HealthCheckResponse.SERVING
            reflect: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            token = (("authorization", "Bearer secret"),)
            async for response in reflect.ServerReflectionInfo(iter([request]), metadata=token):
                assert SERVICE in {service.name for service in response.list_services_response.service}
        stranger = Client(address, env_pb2_grpc.EnvGatewayServiceStub, token="guess")
        with pytest.raises(errors.Unauthenticated):
            await stranger.call("ListEnvironments", env_pb2.ListEnvironmentsRequest(), deadline_s=20)
        await stranger.close()
        player = GatewayClient(address, token="guess")
        with pytest.raises(errors.Unauthenticated):
            await player.open("open_spiel/tic_tac_toe", {}, 1, LIMITS)
        await player.close()
        friend = GatewayClient(address, token="secret")
        await play(friend, "open_spiel/tic_tac_toe", {}, 1)
        await friend.close()


async def test_sigterm_lets_a_game_end(tmp_path):
    with stack(tmp_path) as (gateway, _, address):
        client = GatewayClient(address)
        session = await client.open("open_spiel/tic_tac_toe", {}, 1, LIMITS)
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=30)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            gateway.send_signal(signal.SIGTERM)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watch.cancel()
        with pytest.raises(errors.EnvHostLost, match="stopping"):
            await client.open("open_spiel/tic_tac_toe", {}, 2, LIMITS)
        outcome = await session.step("illegal on purpose, so that the game is over")
        assert outcome.done
        await client.close()
        code, err = await asyncio.to_thread(finished, gateway)
        assert (code, err) == (0, "")


async def test_a_killed_gateway_comes_back(tmp_path):
    # No outgoing connection can take its port while it is away, the host's own attempts included.
    bind = f"127.0.0.1:{free_port('127.0.0.1')}"
    with stack(tmp_path, served={"bind": bind}) as (gateway, _, address):
        client = GatewayClient(address)
        session = await client.open("open_spiel/tic_tac_toe", {}, 1, LIMITS)
        gateway.kill()
        await asyncio.to_thread(gateway.communicate)
        with pytest.raises(errors.EnvHostLost):
            await session.step("[4]")
        again = start("services.env_gateway", write_run(tmp_path, bind=address))
        try:
            assert await asyncio.to_thread(address_of, again) == address
            await play(client, "open_spiel/tic_tac_toe", {}, 1)  # waits for the host to dial again
        finally:
            again.kill()
            again.communicate()
        await client.close()


def test_a_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        code, err = finished(start("services.env_gateway", write_run(tmp_path, bind=bind)))
    assert code == errors.PortInUse.exit_code
    assert err == f"earl: error: env_gateway cannot listen at {bind}; free the port or choose another one"


def test_an_insecure_bind(tmp_path):
    code, err = finished(start("services.env_gateway", write_run(tmp_path, bind="0.0.0.0:0")))
    assert code == errors.InsecureBind.exit_code
    assert err.startswith("earl: error: bind 0.0.0.0:0 is off loopback without TLS and a token; ")


TWICE = """
from earl.env import Environment
class A(Environment):
    name = "mine/game"
class B(A):
    pass
both = [A, B]
"""


@pytest.mark.parametrize(
    ("serve", "code", "text"),
    [
        ("twice:both", errors.DuplicateEnvironment.exit_code, "environment 'mine/game' is named twice"),
        ("earl.nowhere:x", errors.ConfigError.exit_code, "'earl.nowhere:x' cannot be imported"),
    ],
)
def test_hosts_that_cannot_start(tmp_path, serve, code, text):
    (tmp_path / "twice.py").write_text(TWICE)
    run = write_run(tmp_path, serve=serve)
    host = start("earl.env.host", run, EARL_GATEWAY="127.0.0.1:1", PYTHONPATH=str(tmp_path))
    got, err = finished(host)
    assert got == code
    assert err.startswith(f"earl: error: {text}") and "\n" not in err
