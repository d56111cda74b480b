"""Whole episodes of verifiers.v1 through the gateway; its env host runs in an environment of its own."""

import asyncio
import os

import pytest

from earl import errors
from earl.env import Ending
from earl.env.adapters.held_out import EVALUATION_BIT
from earl.env.tool_calls import Action, ToolCall, render
from tests.envs.hosting import LIMITS, ROOT, hosted, needed, playing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PYTHON = ROOT / ".venv-verifiers" / "bin" / "python"
SERVE = "tests.envs.verifiers_classes:ALL"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    directory = tmp_path_factory.mktemp("verifiers")
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "envs" / "verifiers_side")])
    home = {"HOME": str(directory), "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    with hosted(directory, SERVE, "verifiers/reverse", needed(PYTHON), **home) as (address, _):
        yield address


@pytest.fixture
async def client(address):
    async with playing(address) as client:
        yield client


async def test_one_turn(client):
    async def play(seed, right):
        session = await client.open("verifiers/reverse", {}, seed, LIMITS)
        system, word = session.observation.text.split("\n\n")
        assert (system, session.observation.role) == ("Reverse the word.", "user")
        outcome = await session.step(word[::-1] if right else "I do not know, sorry.")
        assert outcome.ending is Ending.OK and outcome.reward == float(right)
        single = {"reward/right": float(right), "reward/brief": float(right)}
        assert outcome.metrics == single | {"length": 4.0 if right else 21.0}
        return word

    training = await asyncio.gather(*(play(seed, seed % 2 == 0) for seed in range(16)))
    held_out = await asyncio.gather(*(play(seed | EVALUATION_BIT, True) for seed in range(16)))
    assert training[5] == await play(5, True)
    assert len(set(training)) > 3 and not set(training) & set(held_out)


async def test_a_user_of_verifiers_speaks(client):
    session = await client.open("verifiers/count", {"index": 3}, 1, LIMITS)
    assert session.observation.text == "30?"
    for turn in range(3):
        outcome = await session.step(str(31 + 2 * turn))
        assert (outcome.done, outcome.observation.text) == (False, f"{32 + 2 * turn}?")
    outcome = await session.step("37")
    assert (outcome.ending, outcome.reward) == (Ending.OK, 1.0)
    session = await client.open("verifiers/count", {"index": 3}, 1, LIMITS)
    await session.step("31")
    outcome = await session.step("no idea")
    assert (outcome.ending, outcome.reward) == (Ending.OK, 0.25)


async def test_a_limit_of_verifiers_truncates(client):
    session = await client.open("verifiers/short", {"index": 0}, 1, LIMITS)
    await session.step("1")
    outcome = await session.step("3")
    assert (outcome.ending, outcome.reward) == (Ending.TRUNCATED, 0.5)


@pytest.mark.parametrize("parsed", [False, True])
async def test_tools_of_verifiers(client, parsed):
    session = await client.open("verifiers/facts", {"index": 1}, 1, LIMITS)
    assert "facts_lookup" in session.observation.text and "grace" in session.observation.text
    call = ToolCall("facts_lookup", {"name": "grace"}, "a-call" if parsed else "")
    outcome = await session.step(Action("", [call]) if parsed else f"Well. {render(call)}")
    assert (outcome.observation.role, outcome.observation.text) == ("tool", "compilers")
    outcome = await session.step("It is compilers.")
    assert (outcome.ending, outcome.reward) == (Ending.OK, 1.0)


async def test_what_goes_wrong_is_an_error(client):
    session = await client.open("verifiers/reverse", {"index": 0}, 1, LIMITS)
    outcome = await session.step("trouble")
    assert outcome.ending is Ending.ENV_ERROR and "the judge is ill" in outcome.message
    session = await client.open("verifiers/pair", {}, 1, LIMITS)
    outcome = await session.step("hello")
    assert outcome.ending is Ending.ENV_ERROR and "second agent" in outcome.message
    for name, task, named in (
        ("verifiers/reverse", {"index": 16}, "none of the taskset's 16 tasks"),
        ("verifiers/reverse", {"idx": 1}, "idx"),
        ("verifiers/missing", {}, "side_missing"),
    ):
        with pytest.raises(errors.EnvironmentFailure, match=named):
            await client.open(name, task, 1, LIMITS)


async def test_sessions_that_are_left_leave_nothing_running(client):
    sessions = await asyncio.gather(
        *(client.open("verifiers/count", {"index": n}, 1, LIMITS) for n in range(12))
    )
    assert [session.observation.text for session in sessions] == [f"{10 * n}?" for n in range(12)]
    for session in sessions:
        await session.close()
    # A host of 16 sessions has room for 16 more.
    again = await asyncio.gather(
        *(client.open("verifiers/count", {"index": n}, 1, LIMITS) for n in range(16))
    )
    outcomes = await asyncio.gather(*(session.step("no") for session in again))
    assert {outcome.ending for outcome in outcomes} == {Ending.OK}
