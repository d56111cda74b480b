"""Whole episodes with the tools of a real MCP server, over stdio and HTTP, through the gateway."""

import asyncio
import socket
import sys
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

from earl import errors
from earl.env import Ending
from earl.env.tool_calls import Action, ToolCall, render
from earl.stack.ports import free_port
from tests.envs.hosting import LIMITS, READY_S, hosted, installed, playing, started

installed("mcp")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVE = "tests.envs.mcp_classes:ALL"
SUM = {"question": "What is 20 + 22?", "answer": 42, "check": "numeric"}
DIES_S = 20


def call(name, **arguments):
    return render(ToolCall(name, arguments))


async def play(client, name, task, *actions):
    """The outcomes of the actions, the last of which ends the episode."""
    session = await client.open(name, task, 1, LIMITS)
    outcomes = [await session.step(action) for action in actions]
    await session.close()
    return session, outcomes


def servers(host):
    """The server processes below a host; one that ends meanwhile is none."""
    live = []
    for process in psutil.Process(host.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "tests.envs.mcp_side" in " ".join(process.cmdline()):
                live.append(process)
    return live


async def waiting_servers(host, count, used):
    """The ids of the servers that wait for an episode, once they are so many and those used have ended."""
    async with asyncio.timeout(READY_S):
        while True:
            ids = {process.pid for process in await asyncio.to_thread(servers, host)}
            if len(ids) == count and not ids & {*used}:
                return ids
            await asyncio.sleep(0.05)


async def gone(processes):
    """All of the processes have ended."""
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, DIES_S)
    return not alive


@contextmanager
def listening(directory):
    """(process, port) of the server over HTTP."""
    port = free_port("127.0.0.1")
    command = [sys.executable, "-m", "tests.envs.mcp_side", str(port)]
    process = started(command, directory / "side.log")
    ends = time.monotonic() + READY_S
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < ends, (
                    directory / "side.log"
                ).read_text()
                time.sleep(0.05)
        yield process, port
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """(gateway's address, host's process)."""
    with hosted(tmp_path_factory.mktemp("mcp"), SERVE, "mcp/sums") as both:
        yield both


@pytest.fixture
async def hosting(stack):
    address, host = stack
    async with playing(address) as client:
        yield client, host


async def test_a_question_its_tools_and_its_answer(hosting):
    client, host = hosting
    others = servers(host)
    session = await client.open("mcp/sums", SUM, 1, LIMITS)
    shown = session.observation.text
    assert '"add"' in shown and "20 + 22" in shown and "<answer>" in shown
    outcome = await session.step(call("add", a=20, b=22))
    assert (outcome.observation.role, outcome.observation.text, outcome.done) == ("tool", "42", False)
    running = [process for process in servers(host) if process not in others]
    assert len(running) == 1
    outcome = await session.step("So it is <answer>42</answer>.")
    assert (outcome.ending, outcome.reward) == (Ending.OK, 1.0)
    assert outcome.metrics == {"win": 1.0, "calls": 1.0, "errors": 0.0, "answered": 1.0}
    assert await gone(running)
    _, (outcome,) = await play(client, "mcp/sums", SUM, "<answer>41</answer>")
    assert (outcome.ending, outcome.reward, outcome.metrics["win"]) == (Ending.OK, 0.0, 0.0)


async def test_servers_wait_ahead_of_their_episodes(tmp_path):
    with hosted(tmp_path, SERVE, "mcp/ahead") as (address, host):
        async with playing(address) as client:
            noted = [call("note", text="n"), call("notes"), "42"]
            used, waiting = [], set()
            for _ in range(3):
                _, outcomes = await play(client, "mcp/ahead", SUM, *noted)
                # No episode finds what another one left.
                pid, *notes = outcomes[1].observation.text.split()
                assert notes == ["n"] and (not waiting or int(pid) in waiting)
                used.append(int(pid))
                waiting = await waiting_servers(host, 2, used)
            assert len(set(used)) == 3
            # One that died while it waited costs no episode.
            for process in servers(host):
                process.kill()
            _, outcomes = await play(client, "mcp/ahead", SUM, "42")
            assert outcomes[0].reward == 1.0
            await waiting_servers(host, 2, [*used, *waiting])
        running = servers(host)
        host.terminate()
        assert await asyncio.to_thread(host.wait, 30) == 0
        assert await gone(running)


async def test_calls_sent_as_such_run_at_once_and_faults_are_the_agents(hosting):
    client, _ = hosting
    calls = [
        ToolCall("add", {"a": 1, "b": 2}, "one"),
        ToolCall("divide", {"a": 1, "b": 0}, "two"),
        ToolCall("add", {"a": "x", "b": 2}, "three"),
        ToolCall("subtract", {}, "four"),
    ]
    _, (outcome, end) = await play(client, "mcp/sums", SUM, Action("", calls), "42")
    results = outcome.observation.tool_results
    assert [(one.id, one.is_error) for one in results] == [
        ("one", False),
        ("two", True),
        ("three", True),
        ("four", True),
    ]
    assert results[0].text == "3" and "divide" in results[1].text and "subtract" in results[3].text
    assert (end.reward, end.metrics["calls"], end.metrics["errors"]) == (1.0, 4.0, 3.0)


async def test_a_slow_tool_is_the_tools_and_a_frozen_server_is_nobodys(hosting):
    client, host = hosting
    others = servers(host)
    session = await client.open("mcp/impatient", SUM, 1, LIMITS)
    outcome = await session.step(call("wait", seconds=60))
    assert "longer than 2 s" in outcome.observation.text and not outcome.done
    assert (await session.step(call("add", a=1, b=1))).observation.text == "2"
    frozen = [process for process in servers(host) if process not in others]
    assert len(frozen) == 1
    with pytest.raises(errors.EnvBackendLost, match="answered nothing"):
        await session.step(call("freeze"))
    assert await gone(frozen)


async def test_a_server_that_dies_is_an_infrastructure_failure(hosting):
    client, _ = hosting
    for name in ("mcp/sums", "mcp/together"):
        session = await client.open(name, SUM, 1, LIMITS)
        with pytest.raises(errors.EnvBackendLost, match="mcp_side"):
            await session.step(call("die"))
        _, (outcome,) = await play(client, name, SUM, "42")
        assert outcome.reward == 1.0
    with pytest.raises(errors.EnvBackendLost, match="/nonexistent/server"):
        await client.open("mcp/nowhere", SUM, 1, LIMITS)


async def test_a_verifier_asks_the_server_what_is_left_in_it(hosting):
    client, _ = hosting
    task = {"question": "Keep the note 'blue'.", "wanted": "blue"}
    session, (_, outcome) = await play(client, "mcp/notes", task, call("note", text="blue"), "done")
    assert (outcome.ending, outcome.reward, outcome.metrics["win"]) == (Ending.OK, 1.0, 1.0)
    assert '"divide"' not in session.observation.text
    _, (_, outcome) = await play(client, "mcp/notes", task, call("note", text="red"), "done")
    assert (outcome.reward, outcome.metrics["win"]) == (0.5, 0.0)
    _, (_, outcome) = await play(client, "mcp/notes", task, call("add", a=1, b=1), call("divide", a=1, b=1))
    assert outcome.ending is Ending.TRUNCATED and outcome.metrics["errors"] == 1.0
    _, (outcome,) = await play(client, "mcp/notes", {"question": "broken"}, "done")
    assert outcome.ending is Ending.ENV_ERROR and "verifier is broken" in outcome.message


async def test_a_bad_task_is_named(hosting):
    client, _ = hosting
    bad = [({}, "question"), ({"question": "?"}, "answer None"), (SUM | {"hint": 1}, "hint")]
    for task, named in bad:
        with pytest.raises(errors.EnvironmentFailure, match=named):
            await client.open("mcp/sums", task, 1, LIMITS)


async def test_servers_over_http_and_shared_ones(tmp_path):
    with (
        listening(tmp_path) as (process, port),
        hosted(tmp_path, SERVE, "mcp/remote", MCP_SIDE_PORT=str(port)) as (address, host),
    ):
        async with playing(address) as client:
            played = await asyncio.gather(
                *(play(client, "mcp/remote", SUM, call("add", a=20, b=n), "42") for n in range(6))
            )
            for n, (_, outcomes) in enumerate(played):
                assert (outcomes[0].observation.text, outcomes[1].reward) == (str(20 + n), 1.0)
            session = await client.open("mcp/remote", SUM, 1, LIMITS)
            process.kill()
            with pytest.raises(errors.EnvBackendLost, match=str(port)):
                await session.step(call("add", a=1, b=1))
            with pytest.raises(errors.EnvBackendLost, match="did not start"):
                await client.open("mcp/remote", SUM, 1, LIMITS)
            noted = [call("note", text="n"), call("notes"), "42"]
            played = await asyncio.gather(*(play(client, "mcp/together", SUM, *noted) for _ in range(8)))
        # One process for all eight, which ends with its host.
        seen = {outcomes[1].observation.text.split()[0] for _, outcomes in played}
        running = servers(host)
        assert [str(process.pid) for process in running] == [*seen]
        host.terminate()
        assert await asyncio.to_thread(host.wait, 30) == 0
        assert await gone(running)
