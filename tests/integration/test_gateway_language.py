"""Whole episodes of the language tasks through real processes: gateway, env host, client."""

import asyncio

import pytest

from earl import errors
from earl.env import Ending, GatewayClient, Limits
from earl.env.adapters.arithmetic import evaluate, number_text
from earl.env.adapters.held_out import EVALUATION_BIT
from earl.env.tool_calls import ToolCall, render
from tests.integration.test_gateway import stack

LIMITS = Limits(queue_s=60, reset_s=30, step_s=30, episode_s=90)
SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2, "operators": ["+"]}
SUMS |= {"allow_parentheses": False, "instruction": "Answer with the number only."}


async def test_reasoning_gym(tmp_path):
    serve = "earl.env.adapters.reasoning_gym:environments"
    with stack(tmp_path, served={"serve": serve, "name": "reasoning_gym/basic_arithmetic"}) as (
        _,
        _,
        address,
    ):
        client = GatewayClient(address)
        assert "reasoning_gym/basic_arithmetic" in await client.environments()

        async def play(seed: int, right: bool):
            session = await client.open("reasoning_gym/basic_arithmetic", SUMS, seed, LIMITS)
            question = session.observation.text.splitlines()[0]
            value = evaluate(question.removeprefix("Calculate ").removesuffix("."))
            outcome = await session.step(f"The answer is {number_text(value) if right else -1}.")
            assert outcome.ending is Ending.OK and outcome.done
            assert outcome.reward == outcome.metrics["win"] == float(right)
            return question

        seeds = range(40)
        training = await asyncio.gather(*(play(seed, seed % 2 == 0) for seed in seeds))
        held_out = await asyncio.gather(*(play(seed | EVALUATION_BIT, True) for seed in seeds))
        assert not set(training) & set(held_out)
        assert await play(3, True) == training[3]
        with pytest.raises(errors.EnvironmentFailure, match="max_term"):
            await client.open("reasoning_gym/basic_arithmetic", {"max_term": 2}, 1, LIMITS)
        await client.close()


async def test_calculator(tmp_path):
    serve = "earl.env.adapters.calculator:environments"
    with stack(tmp_path, served={"serve": serve, "name": "tools/calculator"}) as (_, _, address):
        client = GatewayClient(address)
        session = await client.open("tools/calculator", {"digits": 4}, 7, LIMITS)
        assert session.observation.role == "user"
        problem = session.observation.text.removeprefix("What is ").partition("?")[0]
        call = render(ToolCall("calculator", {"expression": problem}))
        assert call in session.observation.legal_actions
        outcome = await session.step(call)
        assert (outcome.done, outcome.observation.role) == (False, "tool")
        assert outcome.observation.text == number_text(evaluate(problem))
        end = await session.step(outcome.observation.text)
        assert (end.ending, end.metrics["win"]) == (Ending.OK, 1.0)
        assert outcome.reward + end.reward == pytest.approx(1.0)
        session = await client.open("tools/calculator", {}, 8, LIMITS)
        outcome = await session.step("it is 12")
        assert (outcome.done, outcome.reward, outcome.metrics["called"]) == (True, 0.0, 0.0)
        await client.close()
