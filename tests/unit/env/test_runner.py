"""A host's sessions beside the stream: tools in episodes, threads left behind, what failed and how."""

import asyncio
import threading
import time

import pytest

from earl.env import Action, Environment, StepResult, ToolCall, ToolEnvironment, tool
from earl.env.codec import action_message
from earl.env.runner import SessionRunner
from earl.env.serve import as_mapping
from earl.errors import EnvBackendLost
from earl.v1 import common_pb2, env_pb2
from tests.unit.env.test_sdk import Sent, reset, step


class Toolbox(ToolEnvironment):
    """A plain reset, and tools that the test lets go on."""

    name = "test/toolbox"
    gate = threading.Event()

    def reset(self, seed, task):
        return threading.current_thread().name

    @tool(timeout_s=0.05)
    def stuck(self) -> str:
        """Waits for the test."""
        type(self).gate.wait(30)
        return "late"

    @tool
    def lost(self) -> str:
        """Its server is gone."""
        raise ConnectionRefusedError("port 9")


class Broken(Environment):
    name = "test/broken"

    async def reset(self, seed, task):
        return "ready"

    async def step(self, action):
        raise {"exit": SystemExit(1), "lost": EnvBackendLost("no server")}[action]


class Waiting(Environment):
    name = "test/waiting"
    closed = 0

    async def close(self):
        await asyncio.sleep(0)
        type(self).closed += 1

    async def reset(self, seed, task):
        return "ready"

    async def step(self, action):
        await self.in_thread(Toolbox.gate.wait, 30)
        return StepResult("")


async def hold() -> str:
    """Holds the loop until the watch has noticed."""
    return Holding.wait()


class Holding(ToolEnvironment):
    """Holds the loop in a method of its own, or in a tool that is none."""

    name = "test/holding"
    tools = [hold]  # noqa: RUF012
    runner: SessionRunner

    @classmethod
    def wait(cls) -> str:
        assert cls.runner.watch is not None
        held = cls.runner.watch.held
        before = held["test/holding"]
        for _ in range(3_000):
            if held["test/holding"] > before:
                return "noticed"
            time.sleep(0.01)
        return "not noticed"

    async def reset(self, seed, task):
        return self.wait()


@pytest.fixture
async def sent():
    return Sent()


@pytest.fixture
async def runner(sent):
    Toolbox.gate.clear()
    runner = SessionRunner(as_mapping([Toolbox, Broken, Waiting]), 2, sent.queue.put_nowait)
    yield runner
    Toolbox.gate.set()
    runner.close()


def calling(session, seq, *names):
    sent = action_message(Action("", [ToolCall(name, {}, f"id {name}") for name in names]))
    return env_pb2.Step(session=session, seq=seq, action=sent)


async def test_a_tool_left_behind_takes_capacity_until_it_ends(runner, sent):
    runner.reset(reset(1, "test/toolbox"))
    assert (await sent.next("result")).observation.text.startswith("environment-")
    runner.step(calling(1, 1, "stuck"))
    assert (await sent.next("credit")).capacity == 1
    result = await sent.next("result")
    (answer,) = result.observation.tool_results
    assert (answer.id, answer.is_error, result.done) == ("id stuck", True, False)
    Toolbox.gate.set()
    assert (await sent.next("credit")).capacity == 2
    runner.step(step(1, 2, "done"))
    assert (await sent.next("result")).ending == common_pb2.ENDING_OK


@pytest.mark.parametrize(
    ("environment", "action", "ending", "message"),
    [
        (
            "test/toolbox",
            "lost",
            common_pb2.ENDING_INFRA_ERROR,
            "EnvBackendLost: step 1 raised ConnectionRefusedError: port 9",
        ),
        ("test/broken", "lost", common_pb2.ENDING_INFRA_ERROR, "EnvBackendLost: no server"),
        (
            "test/broken",
            "exit",
            common_pb2.ENDING_ENV_ERROR,
            "EnvironmentFailure: step 1 raised SystemExit: 1",
        ),
    ],
)
async def test_what_failed_and_how(runner, sent, environment, action, ending, message):
    runner.reset(reset(1, environment))
    await sent.next("result")
    runner.step(calling(1, 1, action) if environment == "test/toolbox" else step(1, 1, action))
    result = await sent.next("result")
    assert (result.ending, result.message) == (ending, message)


async def test_an_async_step_that_was_dropped_gives_its_threads_back(runner, sent):
    runner.reset(reset(1, "test/waiting"))
    await sent.next("result")
    runner.step(step(1, 1, "go"))
    await asyncio.sleep(0)
    runner.drop(1)
    while runner.offered != 1:
        await sent.next("credit")
    Toolbox.gate.set()
    while runner.offered != 2:
        await sent.next("credit")


async def test_environments_may_close_before_a_host_ends(runner, sent):
    Waiting.closed = 0
    for session in (1, 2):
        runner.reset(reset(session, "test/waiting"))
        await sent.next("result")
    runner.close()
    await runner.wait_closed(30.0)
    assert Waiting.closed == 2


async def test_an_environment_that_holds_the_loop_is_named_and_counted(sent, caplog):
    runner = Holding.runner = SessionRunner(as_mapping([Holding]), 1, sent.queue.put_nowait, hold_s=0.02)
    runner.reset(reset(1, "test/holding"))
    assert (await sent.next("result")).observation.text == "noticed"
    runner.step(calling(1, 1, "hold"))
    assert (await sent.next("result")).observation.text == "noticed"
    assert runner.watch is not None and runner.watch.held["test/holding"] >= 2
    said = [record.getMessage() for record in caplog.records if record.name == "earl.env.watch"]
    assert (
        said[0].startswith("test/holding holds the loop for longer than 0.02 s") and " in reset " in said[0]
    )
    assert "tools.py" in said[1] and "2 times" in said[1]
    runner.close()
