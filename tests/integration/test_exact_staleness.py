"""`deterministic = true` with staleness: sampling and training overlap, and the plan fixes the versions.

A run on two rollout workers that nothing happens to is compared, bit for bit, with runs on one worker whose
processes are killed. Versions: 1 is the start, 2 and 3 are made by warm-up, 4 to 11 by training.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.exact import Exact, Moment, Outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FIRST, STEPS = 3, 8
LAST = FIRST + STEPS
MOMENTS = ("trajectory_ready", "batch_planned", "batch_committed", "weights_published")
# Two ranks that train adapters alone, against an opponent that is frozen every second step.
SEATS: dict[str, Any] = {
    "environment": {
        "seats": 2, "opponent": "frozen", "frozen_every": 2,
        "evaluation_tasks": [{"opponent": "random", "player": player} for player in (0, 1)],
    },
    "warmup": {"batch_episodes": 24},
    "trainer": {
        "checkpoint_every": 3, "ranks": 2, "dtype": "bfloat16", "lora_rank": 4, "lora_alpha": 8.0, "lr": 1e-2,
        "importance": "truncated", "minibatches": 2, "passes": 2,
    },
    "scheduler": {"steps": 6, "batch_groups": 2, "group_size": 4, "staleness": 2, "profile_s": 0},
}  # fmt: skip
# Who decides what is played by which version: with hashes of its own.
LAUNCHED = ("scheduler", "rollout-0")
PARTS = ("all", "trainer", "trainer", "rollout-0", "rollout-0", "scheduler", "gateway", "env-0")


def sections(staleness: int) -> dict[str, dict[str, Any]]:
    scheduler = {"steps": STEPS, "staleness": staleness}
    # Not every version has a checkpoint: what is rolled back is sampled again by versions before it.
    trainer = {"checkpoint_every": 3, "minibatches": 2, "passes": 2, "lr": 3e-3, "lr_final_fraction": 0.1}
    if staleness == 1:
        # A batch waits for the reference stage.
        trainer["kl_coefficient"] = 0.1
    return {"scheduler": scheduler, "trainer": trainer, "evaluation": {"every_steps": 3}}


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module", params=[1, 2])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, Outcome]]:
    """(staleness, outcome) of a run on two workers that nothing happened to."""
    staleness: int = request.param

    async def played() -> Outcome:
        directory = tmp_path_factory.mktemp(f"whole-{staleness}")
        async with Exact(directory, 2, as_launched=LAUNCHED, **sections(staleness)) as run:
            await run.up()
            await run.finish()
            for step in lines(run.stack.directory):
                trained = step["version"] - 1
                planned = 0 if trained < FIRST else min(staleness, trained - FIRST)
                assert (step["staleness_mean"], step["staleness_max"]) == (planned, planned), step
            return run.outcome()

    outcome = asyncio.run(played())
    assert sorted(outcome.steps) == list(range(2, LAST + 1))
    assert len({weights for _, _, weights in outcome.steps.values()}) == LAST - 1
    yield staleness, outcome


async def test_a_run_whose_processes_are_killed_makes_the_same_parameters(
    tmp_path: Path, undisturbed: tuple[int, Outcome]
) -> None:
    staleness, expected = undisturbed
    async with Exact(tmp_path, workers=1, **sections(staleness)) as run:
        await run.up()
        # Version 5 is trained on samples of an older version, and there is no checkpoint of it.
        assert await run.until(Moment("batch_committed", version=5))
        await run.kill_all()
        await run.up()
        assert await run.until(Moment("trajectory_ready", version=5, count=3))
        await run.replace("rollout-0")
        assert await run.until(Moment("batch_planned", version=8))
        await run.replace("trainer")
        assert await run.until(Moment("trajectory_ready", version=8))
        await run.replace("scheduler")
        await run.finish()
        assert run.outcome() == expected
        # What was trained and is in no checkpoint was trained again.
        made = [step["version"] for step in lines(run.stack.directory)]
        assert len(made) > len(set(made))


@pytest.mark.parametrize("seed", range(2))
async def test_kills_at_random_change_nothing(
    tmp_path: Path, undisturbed: tuple[int, Outcome], seed: int
) -> None:
    staleness, expected = undisturbed
    draw, kills = random.Random(f"{seed} {staleness}"), 0
    async with Exact(tmp_path, workers=1, **sections(staleness)) as run:
        await run.up()
        while kills < 8 and await run.until(Moment(draw.choice(MOMENTS))):
            part = draw.choice(PARTS)
            kills += 1
            if part == "all":
                await run.kill_all()
                await run.up()
            else:
                await run.replace(part)
        # While one service starts again the others go on, so that the run may be over before.
        assert kills >= 3
        await run.finish()
        assert run.outcome() == expected


async def test_ranks_adapters_and_a_frozen_opponent_resume_exactly(tmp_path: Path) -> None:
    async with Exact(tmp_path / "whole", 1, as_launched=LAUNCHED, **SEATS) as run:
        await run.up()
        await run.finish()
        expected = run.outcome()
        # Every version that a checkpoint's tickets name, pinned or frozen, lies in one directory.
        kept = {path.name for path in (run.stack.directory / "opponents").iterdir()}
        assert {"step-7", "step-8", "step-9"} <= kept and not (run.stack.directory / "versions").exists()
    async with Exact(tmp_path / "killed", 2, **SEATS) as run:
        await run.up()
        assert await run.until(Moment("batch_committed", version=8))
        await run.kill_all()
        await run.up()
        assert await run.until(Moment("trajectory_ready", version=6))
        await run.replace("rollout-0")
        await run.finish()
        assert run.outcome() == expected
