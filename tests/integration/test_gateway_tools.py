"""Whole episodes with real tools, and of the aircraft, through real processes: gateway, host, client."""

import asyncio

import pytest

from earl.env import Action, Ending, GatewayClient, Limits, ToolCall
from earl.env.adapters import pitch, python_tool, search_tool
from earl.env.adapters.pitch_model import near_optimal
from tests.integration.test_gateway import stack
from tests.support.episodes import seen

LIMITS = Limits(queue_s=60, reset_s=30, step_s=60, episode_s=90)
SERVED = {"serve": "tests.support.tool_environments:all_of_them", "name": "tools/python"}


async def test_tools_and_the_aircraft_through_the_gateway(tmp_path):
    with stack(tmp_path, served=SERVED) as (_, _, address):
        client = GatewayClient(address)
        await asyncio.gather(*(python(client, seed) for seed in range(6)))
        await asyncio.gather(*(search(client, seed) for seed in range(6)))
        await fly(client, 4)
        await client.close()


async def python(client: GatewayClient, seed: int):
    """Half of the episodes say the answer after a right program, half after one that is stopped."""
    twin = python_tool.PythonTool()
    assert twin.reset(seed, {}).text
    session = await client.open("tools/python", {}, seed, LIMITS)
    assert session.observation.text.startswith(twin.question.text)
    if seed % 2:
        outcome = await session.step(python_tool.call_of(twin.question.code()))
    else:
        code = f"import socket\ntry: socket.socket()\nexcept OSError: print({twin.question.code()})"
        outcome = await session.step(Action("", [ToolCall("python", {"code": code}, "c1")]))
        assert [result.id for result in outcome.observation.tool_results] == ["c1"]
    assert (outcome.done, outcome.observation.role) == (False, "tool")
    end = await session.step(outcome.observation.text)
    assert (end.ending, end.metrics["win"]) == (Ending.OK, 1.0)
    assert outcome.reward + end.reward == pytest.approx(1.0)


async def search(client: GatewayClient, seed: int):
    twin = search_tool.SearchTool()
    assert twin.reset(seed, {}).text
    session = await client.open("tools/search", {}, seed, LIMITS)
    outcome = await session.step(search_tool.call_of(twin.corpus.question))
    assert twin.corpus.answer in outcome.observation.text
    end = await session.step(twin.corpus.answer)
    assert (end.ending, outcome.reward + end.reward) == (Ending.OK, pytest.approx(1.0))


async def fly(client: GatewayClient, seed: int):
    """The policy that foresees plays on a model of its own; the host's must go the same way."""
    twin = pitch.PitchRecovery()
    assert twin.reset(seed, {}).text
    session = await client.open("flight/pitch_recovery", {}, seed, LIMITS)
    while not session.done:
        stick = f"{near_optimal(twin.aircraft, twin.now.state, twin.hold_s, twin.limits):.3f}"
        own = twin.step(stick)
        outcome = await session.step(stick)
        assert outcome.observation.text == seen(own).text
    assert (outcome.ending, outcome.reward, outcome.metrics["win"]) == (Ending.OK, 1.0, 1.0)
