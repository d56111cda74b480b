"""Whole episodes of a real OpenEnv server, in an environment of its own, through the gateway."""

import asyncio
import json
import os
import random
import signal
import socket
import time
from contextlib import contextmanager

import pytest

from earl import errors
from earl.env import Ending
from earl.stack.ports import free_port
from tests.envs.hosting import LIMITS, READY_S, ROOT, hosted, installed, needed, playing, started

installed("websockets")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PYTHON = ROOT / ".venv-openenv" / "bin" / "python"
SERVE = "tests.envs.openenv_classes:ALL"


@contextmanager
def serving(directory, room):
    """(process, port) of the server, for so many sessions at a time."""
    python = needed(PYTHON)
    port = free_port("127.0.0.1")
    command = [str(python), str(ROOT / "tests" / "envs" / "openenv_side.py"), str(port), str(room)]
    log = directory / "side.log"
    process = started(command, log, PYTHONPATH="")
    ends = time.monotonic() + READY_S
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < ends, log.read_text()[-3000:]
                time.sleep(0.05)
        yield process, port
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Address of a gateway whose host plays a server with room for eight."""
    directory = tmp_path_factory.mktemp("openenv")
    with (
        serving(directory, 8) as (_, port),
        hosted(directory, SERVE, "openenv/guess", OPENENV_SIDE_PORT=str(port)) as (address, _),
    ):
        yield address


@pytest.fixture
async def client(address):
    async with playing(address) as client:
        yield client


async def guessed(client, seed, name="openenv/guess", task=None):
    """The outcomes of a binary search, and what it found."""
    session = await client.open(name, task or {}, seed, LIMITS)
    low, high, number, outcomes = 0, (task or {}).get("below", 100), 0, []
    while not session.done:
        number = (low + high) // 2
        outcomes.append(
            await session.step(str(number) if name == "openenv/guess" else f'so {{"number": {number}}}')
        )
        if "higher" in session.observation.text:
            low = number + 1
        else:
            high = number
    await session.close()
    return outcomes, number


async def test_episodes(client):
    played = await asyncio.gather(*(guessed(client, seed) for seed in range(6)))
    for seed, (outcomes, number) in enumerate(played):
        end = outcomes[-1]
        assert (end.ending, end.observation.text) == (Ending.OK, "right")
        assert end.reward == pytest.approx(0.5 + 0.5 / len(outcomes))
        assert end.metrics == {"steps": len(outcomes), "invalid": 0.0, "return": end.reward}
        # The server draws from the seed that it is given.
        assert number == random.Random(seed).randrange(100)
    raw, _ = await guessed(client, 3, "openenv/raw")
    assert json.loads(raw[-1].observation.text) == {"text": "right", "turn": len(raw)}
    (only,), _ = await guessed(client, 3, task={"below": 1})
    assert only.reward == 1.0


async def test_a_bad_action_is_the_agents(client):
    session = await client.open("openenv/guess", {}, 1, LIMITS)
    outcome = await session.step("forty")
    assert outcome.observation.text.startswith("That is no action: ") and "number" in outcome.observation.text
    assert (outcome.done, outcome.reward) == (False, 0.0)
    for _ in range(11):
        outcome = await session.step("-7")
    assert outcome.ending is Ending.TRUNCATED
    assert (outcome.metrics["steps"], outcome.metrics["invalid"]) == (12.0, 1.0)
    session = await client.open("openenv/raw", {}, 1, LIMITS)
    for said in ("no object", '{"number": NaN}', '{"number": 1', '{"guess": 1}'):
        outcome = await session.step(said)
        assert outcome.observation.text.startswith("That is no action: ") and not outcome.done
    await session.close()


async def test_what_the_environment_does_wrong_is_an_error(client):
    # Its exception; an infinite reward, which the server sends as null; a message beyond any bound.
    errors_of = (
        (-1, "the environment is broken"),
        (-4, "reward None"),
        (-5, "exceeds limit of 4194304 bytes"),
    )
    for number, said in errors_of:
        session = await client.open("openenv/guess", {}, 1, LIMITS)
        outcome = await session.step(str(number))
        assert outcome.ending is Ending.ENV_ERROR and said in outcome.message
    with pytest.raises(errors.EnvironmentFailure, match="no 'words'"):
        await client.open("openenv/mistaken", {}, 1, LIMITS)
    with pytest.raises(errors.EnvironmentFailure, match="'seed' cannot be set"):
        await client.open("openenv/guess", {"seed": 2}, 1, LIMITS)


async def test_a_server_that_is_full_freezes_or_dies(tmp_path):
    with (
        serving(tmp_path, 1) as (process, port),
        hosted(tmp_path, SERVE, "openenv/guess", OPENENV_SIDE_PORT=str(port)) as (address, _),
    ):
        async with playing(address) as client:
            first = await client.open("openenv/guess", {}, 1, LIMITS)
            second = asyncio.create_task(client.open("openenv/guess", {}, 2, LIMITS))
            await first.step("1")
            await first.close()
            session = await second
            with pytest.raises(errors.EnvBackendLost, match="no session free"):
                await client.open("openenv/guess", {}, 3, LIMITS)
            with pytest.raises(errors.EnvBackendLost, match="did not answer a step within 3 s"):
                await session.step("-3")
            os.kill(process.pid, signal.SIGCONT)
            session = await client.open("openenv/guess", {}, 1, LIMITS)
            with pytest.raises(errors.EnvBackendLost, match="was lost in a step"):
                await session.step("-2")
            with pytest.raises(errors.EnvBackendLost, match=r"no OpenEnv server at ws://127\.0\.0\.1"):
                await client.open("openenv/guess", {}, 1, LIMITS)
