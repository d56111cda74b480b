"""Switches that the run file plans: whatever is killed around them, and whenever, the weights are the same.

Versions: 1 is the start, 2 and 3 are made by warm-up, 4 to 11 by training; step N begins with version N + 2.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.exact import Exact, Moment, Outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PLAN = ["3 rollout tp=2", "5 trainer tp=2", "7 rollout tp=1"]
# The layout of each stage before and after each of them.
PLANNED = {("rollout", "2-1", "1-2"), ("trainer", "2-1", "1-2"), ("rollout", "1-2", "2-1")}
LAUNCHED = ("rollout-0", "trainer")


def sections(staleness: int, plan: list[str]) -> dict[str, dict[str, Any]]:
    return {
        "rollout": {"engines": 2},
        # Not every version has a checkpoint: what is rolled back is sampled and trained again as before.
        "trainer": {"ranks": 2, "checkpoint_every": 3, "lr": 3e-3},
        "scheduler": {"steps": 8, "staleness": staleness, "selector": "static"},
        "evaluation": {"every_steps": 3},
        "switch": {"plan": plan},
    }


def switched(directory: Path) -> list[tuple[str, str, str]]:
    """(stage, before, after) of every switch of the run."""
    made = []
    for line in map(json.loads, (directory / "switches.jsonl").read_text().splitlines()):
        assert line["by"] == "plan" and not line["rolled_back"], line
        before, after = (f"{line[side]['dp']}-{line[side]['tp']}" for side in ("before", "after"))
        made.append((line["stage"], before, after))
    return made


@pytest.fixture(scope="module", params=[0, 2])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, Outcome]]:
    """(staleness, outcome) of a run on two workers that nothing happened to."""
    staleness: int = request.param

    async def played() -> Outcome:
        directory = tmp_path_factory.mktemp(f"whole-{staleness}")
        async with Exact(directory, 2, as_launched=LAUNCHED, **sections(staleness, PLAN)) as run:
            await run.up()
            await run.finish()
            made = switched(run.stack.directory)
            # Each worker has its own switches, and nobody goes back.
            assert set(made) == PLANNED and len(made) <= 5
            return run.outcome()

    outcome = asyncio.run(played())
    assert sorted(outcome.steps) == list(range(2, 12))
    yield staleness, outcome


async def test_kills_around_planned_switches_change_nothing(
    tmp_path: Path, undisturbed: tuple[int, Outcome]
) -> None:
    staleness, expected = undisturbed
    async with Exact(tmp_path, workers=1, **sections(staleness, PLAN)) as run:
        await run.up()
        # Engines begin to change for version 5.
        assert await run.until(Moment("weights_published", version=5))
        await run.replace("rollout-0")
        # The trainer begins to change for version 7, and goes back to a checkpoint of before.
        assert await run.until(Moment("batch_committed", version=7))
        await run.replace("trainer")
        assert await run.until(Moment("batch_committed", version=8))
        await run.replace("scheduler")
        assert await run.until(Moment("batch_planned", version=9))
        await run.kill_all()
        await run.up()
        await run.finish()
        assert run.outcome() == expected
        made = switched(run.stack.directory)
        # Workers that were killed right after their last switch have not reported it.
        assert PLANNED - {("rollout", "1-2", "2-1")} <= set(made)
        # A trainer that starts again begins with the layout of the run file, and changes anew.
        assert made.count(("trainer", "2-1", "1-2")) > 1


async def test_the_plan_changes_what_is_computed(tmp_path: Path, undisturbed: tuple[int, Outcome]) -> None:
    staleness, planned = undisturbed
    async with Exact(tmp_path, workers=1, **sections(staleness, [])) as run:
        await run.up()
        await run.finish()
        plain = run.outcome()
    # Until the first version that a switch belongs to is sampled and trained, they are one run.
    first = 5 + staleness if staleness else 5
    same = [version for version in planned.steps if planned.steps[version] == plain.steps[version]]
    assert same == list(range(2, min(first, 7) + 1))
