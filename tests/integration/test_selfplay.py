"""Whole runs in which the policy plays both seats of tic-tac-toe: bit-exact over kills, exact tickets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from earl.stack import plan
from tests.support.exact import Exact, Moment, Outcome

pytestmark = pytest.mark.timeout(300)

SELF_PLAY: dict[str, Any] = {
    "environment": {
        "seats": 2,
        "evaluation_tasks": [{"opponent": "random", "player": player} for player in (0, 1)],
    },
    # Half as many episodes as a run with one seat, for as many trajectories.
    "warmup": {"batch_episodes": 24},
    "scheduler": {"steps": 4, "batch_groups": 2, "transcripts": 16},
}
# What deals with seats. test_exact_resume.py begins the trainer anew.
ANEW = (plan.SCHEDULER, plan.GATEWAY, "env-0", "rollout-0")
# Trajectories: two of warm-up's batches, four of training's.
TRAINED = 2 * 24 * 2 + 4 * 2 * 4 * 2


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """A run on two rollout workers that nothing happened to, and its directory."""

    async def played() -> tuple[Outcome, Path]:
        directory = tmp_path_factory.mktemp("whole")
        async with Exact(directory, 2, as_launched=ANEW, **SELF_PLAY) as run:
            await run.up()
            await run.finish()
            return run.outcome(), run.stack.directory

    return asyncio.run(played())


def lines(directory: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / name).read_text(encoding="utf-8").splitlines()]


def test_every_ticket_is_accounted_for_and_each_seat_has_figures(
    undisturbed: tuple[Outcome, Path],
) -> None:
    outcome, directory = undisturbed
    steps = lines(directory, "metrics.jsonl")
    last = steps[-1]
    assert sum(step["sequences"] for step in steps) == TRAINED == last["ledger"]["trained"]
    for step in steps:
        sums = [step[f"seats.{seat}.reward_mean"] for seat in (0, 1)]
        assert step["reward_mean"] == pytest.approx(sum(sums) / 2)
        assert step["seats.0.turns_mean"] >= step["seats.1.turns_mean"]
    assert len({weights for _, _, weights in outcome.steps.values()}) == len(steps)


def test_each_seat_sees_its_own_part_of_the_game(undisturbed: tuple[Outcome, Path]) -> None:
    samples = lines(undisturbed[1], "samples.jsonl")
    seats: dict[int, dict[int, dict[str, Any]]] = {}
    for sample in samples:
        if not sample["evaluation"]:
            seats.setdefault(sample["ticket"] - sample["seat"], {})[sample["seat"]] = sample
    # A seat that never had a turn saw and said nothing.
    matches = [match for match in seats.values() if len(match) == 2]
    assert matches and all(0 in match for match in seats.values())
    for match in matches:
        first, second = (
            [turn["text"] for turn in match[seat]["turns"] if turn["role"] == "user"] for seat in (0, 1)
        )
        # Seat 0 begins on an empty board, and each seat moves once between two of the other's.
        assert "x" not in first[0] and len(second) in (len(first) - 1, len(first))
        assert not set(first) & set(second)
    # Evaluations play one seat, x and o in turns, and no ticket of theirs has a seat.
    judged = [sample for sample in samples if sample["evaluation"] == "final"]
    openings = {sample["index"]: sample["turns"][0]["text"] for sample in judged}
    assert len(openings) == 4 and all("seat" not in sample for sample in judged)
    assert [("x" in openings[index]) for index in range(4)] == [False, True, False, True]


async def test_a_killed_run_makes_the_same_tokens_and_parameters(
    tmp_path: Path, undisturbed: tuple[Outcome, Path]
) -> None:
    async with Exact(tmp_path, workers=1, **SELF_PLAY) as run:
        await run.up()
        assert await run.until(Moment("trajectory_ready", count=3))  # in warm-up, in the middle of a match
        await run.kill_all()
        await run.up()
        assert await run.until(Moment("batch_committed", version=4))
        await run.replace("trainer")
        assert await run.until(Moment("trajectory_ready", version=5, count=3))
        await run.replace("rollout-0")
        await run.finish()
        assert run.outcome() == undisturbed[0]
