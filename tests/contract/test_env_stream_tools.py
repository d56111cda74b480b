"""Calls of tools through the gateway: what a client sends as such, and what it finds in the listing."""

import json
from typing import Any

import pytest

from earl.env import Action, Ending, Environment, StepResult, ToolCall, ToolEnvironment, tool
from earl.env.base import ISOLATIONS
from earl.env.session import OfferedTools
from earl.env.tool_calls import render
from earl.errors import EnvironmentFailure, EnvProtocolError
from earl.v1 import env_pb2
from tests.contract.test_env_stream_host import LIMITS, hosting, playing, serving


class Adding(ToolEnvironment):
    """Numbers to add."""

    name = "test/adding"

    def reset(self, seed, task):
        return "what is 2 + 3?"

    @tool
    async def add(self, a: int, b: int) -> int:
        """The sum of two integers."""
        return a + b

    def answered(self, text):
        return StepResult("", reward=float(text == "5"), done=True)


async def test_calls_and_results_travel_as_such():
    async with serving() as (_, address), hosting(address, Adding), playing(address) as client:
        session = await client.open("test/adding", limits=LIMITS)
        calls = [ToolCall("add", {"a": 2, "b": 3}, "c1"), ToolCall("add", {"a": 2}, "c2")]
        outcome = await session.step(Action("let me add", calls))
        first, second = outcome.observation.tool_results
        assert (first.text, first.id, first.is_error) == ("5", "c1", False)
        assert (second.text, second.id, second.is_error) == ("add: b: Field required", "c2", True)
        assert outcome.observation.text == "[1] add\n5\n[2] add\nerror: add: b: Field required"
        outcome = await session.step("5")
        assert (outcome.ending, outcome.reward) == (Ending.OK, 1.0)
        request = env_pb2.ListEnvironmentsRequest()
        listed = await client._client.call("ListEnvironments", request, deadline_s=10)
        (described,) = json.loads(listed.entries[0].environment.tools_json)
        assert described["function"]["parameters"]["required"] == ["a", "b"]


class Several(ToolEnvironment):
    """Says which tools there are."""

    name = "test/several"

    def reset(self, seed, task):
        return ", ".join(tool.name for tool in self.tools)

    @tool
    async def look(self) -> str:
        """Looks."""
        return "a room"

    @tool
    async def take(self) -> str:
        """Takes."""
        return "a lamp"


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_a_client_may_leave_tools_out(isolation: str):
    async with (
        serving() as (_, address),
        hosting(address, Several, isolation=isolation),
        playing(address) as client,
    ):
        assert (await client.tools())["test/several"] == OfferedTools(("look", "take"), True)
        session = await client.open("test/several", limits=LIMITS)
        assert session.observation.text == "look, take"
        session = await client.open("test/several", limits=LIMITS, tools=["take"])
        assert session.observation.text == "take"
        outcome = await session.step(render(ToolCall("take", {})))
        assert outcome.observation.text == "a lamp"
        outcome = await session.step(render(ToolCall("look", {})))
        assert outcome.observation.text == "error: no tool 'look'; there is take"
        with pytest.raises(EnvironmentFailure, match=r"test/several has no tool 'drop'; it has look, take"):
            await client.open("test/several", limits=LIMITS, tools=["drop"])


class Plain(Environment):
    """An environment without tools."""

    name = "test/plain"

    def reset(self, seed, task):
        return ""


async def test_a_host_that_cannot_leave_tools_out_refuses():
    async with serving() as (_, address), hosting(address, Plain), playing(address) as client:
        assert (await client.tools())["test/plain"] == OfferedTools((), False)
        with pytest.raises(EnvProtocolError, match=r"test/plain cannot select tools, look were asked for"):
            await client.open("test/plain", limits=LIMITS, tools=["look"])


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(
    ("config", "bound"),
    [({}, 16_384), ({"max_action_characters": 300}, 300), ({"max_action_characters": 40_000}, 40_000)],
)
async def test_the_run_file_bounds_an_action_with_calls(config: dict[str, Any], bound: int, isolation: str):
    call = render(ToolCall("add", {"a": 2, "b": 3}))
    async with (
        serving(**config) as (_, address),
        hosting(address, Adding, isolation=isolation),
        playing(address) as client,
    ):
        session = await client.open("test/adding", limits=LIMITS)
        outcome = await session.step(call.rjust(bound))
        assert outcome.observation.text == "5"
        outcome = await session.step(call.rjust(bound + 1))
        refusal = f"error: an action of {bound + 1} characters; at most {bound}"
        assert (outcome.observation.text, outcome.done) == (refusal, False)
        # Not so an answer, nor what a client sent as calls.
        outcome = await session.step(Action("x" * (bound + 1), [ToolCall("add", {"a": 2, "b": 3})]))
        assert outcome.observation.text == "5"
        assert (await session.step("5".rjust(bound + 1))).done
