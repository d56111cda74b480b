"""Whole episodes of the adapters' environments through real processes: gateway, host, client."""

import asyncio
import os
import random
import subprocess
import sys
from typing import Any

import pytest

from earl import errors
from earl.env import Ending, GatewayClient, Limits
from tests.integration.test_gateway import stack

LIMITS = Limits(queue_s=60, reset_s=30, step_s=30, episode_s=90)
SERVED = {"serve": "tests.support.adapters_served:environments", "name": "textarena/TicTacToe-v0"}
LISTED = {"legal_actions": True, "max_turns": 10}
# (environment, task, what a policy without legal actions says)
GAMES: list[tuple[str, dict[str, Any], str]] = [
    ("gymnasium/FrozenLake-v1", {"map_size": 5}, ""),
    ("gymnasium/Taxi-v4", {"max_steps": 20}, ""),
    ("gymnasium/Pendulum-v1", {"max_steps": 20}, ""),
    ("gymnasium/Blackjack-v1", {}, ""),
    ("open_spiel/goofspiel", {}, ""),
    ("open_spiel/backgammon", {"max_turns": 20}, ""),
    ("open_spiel/2048", {"max_turns": 20}, ""),
    ("open_spiel/hearts", {"player": 2}, ""),
    ("reasoning_gym/chain_sum", {}, "<answer>7</answer>"),
    ("skyrl_gym/gsm8k", {}, "#### 7"),
    ("skyrl_gym/gsm8k_multi_turn", {}, "#### 7"),
    ("textarena/TicTacToe-v0", LISTED, ""),
    ("textarena/ConnectFour-v0", LISTED | {"player": 1}, ""),
    ("textarena/GuessTheNumber-v0", LISTED, ""),
    ("textarena/LiarsDice-v0", LISTED | {"players": 4}, ""),
    ("textarena/TowerOfHanoi-v0", LISTED, ""),
]
# Prints what these datasets make of some seeds, and their own answers.
QUESTIONS = """
import sys
from earl.env.serve import load

served = load("earl.env.adapters.reasoning_gym:environments")
for name in sys.argv[1:]:
    for seed in range(126, 129):
        task = served[f"reasoning_gym/{name}"]()
        print(repr((name, task.reset(seed, {}).text, task.step("").observation.text)))
"""
EVERYWHERE = [
    "isomorphic_strings", "list_functions", "polynomial_multiplication", "ransom_note", "word_ladder"
]  # fmt: skip


async def play(client: GatewayClient, name: str, task: dict[str, Any], says: str, seed: int):
    rng = random.Random(seed)
    session = await client.open(name, task, seed, LIMITS)
    seen = [session.observation.text]
    while True:
        outcome = await session.step(says or rng.choice(session.observation.legal_actions))
        seen.append(outcome.observation.text)
        if outcome.done:
            await session.close()
            return outcome, seen


async def test_a_game_with_opponents(tmp_path):
    name = "textarena/TicTacToe-v0"
    with stack(tmp_path, served={"serve": "earl.env.adapters.textarena:environments", "name": name}) as (
        *_,
        address,
    ):
        client = GatewayClient(address)
        games = [(name, LISTED | {"player": seed % 2}, "", seed) for seed in range(6)]
        played = await asyncio.gather(*(play(client, *game) for game in games))
        assert all(outcome.ending is Ending.OK for outcome, _ in played)
        again = await asyncio.gather(*(play(client, *game) for game in reversed(games)))
        assert [seen for _, seen in reversed(again)] == [seen for _, seen in played]
        session = await client.open(name, {"retries": 0}, 1, LIMITS)
        outcome = await session.step("the middle")
        assert (outcome.reward, outcome.metrics["illegal"]) == (-1.0, 1.0)
        await client.close()


def test_a_seed_is_the_same_question_in_every_process():
    """Datasets that go through sets, or draw from the chance of the process, each the process's own."""
    made = []
    for hash_seed in ("1", "2"):
        process = subprocess.run(
            [sys.executable, "-c", QUESTIONS, *EVERYWHERE],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        made.append(process.stdout.splitlines())
    assert len(made[0]) == 3 * len(EVERYWHERE) and made[0] == made[1]


@pytest.mark.slow
async def test_episodes_of_every_adapter_at_once(tmp_path):
    """All at the same time in one host's threads, twice: what each shows is its seed's alone."""
    with stack(tmp_path, served=SERVED) as (_, _, address):
        client = GatewayClient(address)
        served = await client.environments()
        assert {name for name, _, _ in GAMES} <= set(served) and len(served) > 400
        episodes = [(*game, seed) for game in GAMES for seed in (1, 2)]
        played = await asyncio.gather(*(play(client, *episode) for episode in episodes))
        for (name, *_), (outcome, _) in zip(episodes, played, strict=True):
            assert outcome.ending in (Ending.OK, Ending.TRUNCATED), (name, outcome.message)
            assert "win" in outcome.metrics
        again = await asyncio.gather(*(play(client, *episode) for episode in reversed(episodes)))
        assert [seen for _, seen in reversed(again)] == [seen for _, seen in played]
        for name, says in (("gymnasium/Taxi-v4", "fly"), ("open_spiel/backgammon", "fly")):
            session = await client.open(name, {}, 1, LIMITS)
            outcome = await session.step(says)
            assert outcome.ending is Ending.OK and outcome.metrics["illegal"] == 1
        with pytest.raises(errors.EnvironmentFailure, match="unknown task key 'slippery'"):
            await client.open("gymnasium/FrozenLake-v1", {"slippery": False}, 1, LIMITS)
        await client.close()
