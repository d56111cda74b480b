"""`deterministic = true`: a run killed at any point and taken up again makes the same tokens and parameters.

Every comparison is of bits: digests of each batch's tokens and of what was trained on, of the weights
after each step, and the files of the last checkpoint (parameters and moments) and of the export.
A step that was done twice, because a roll-back took it back, must have come out the same both times.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from earl.obs.metrics import read_lines
from earl.parallelism import REFERENCE
from earl.stack import plan
from tests.support.exact import Exact, Moment, Outcome

DRAFTS: dict[str, Any] = {"drafts": ["task", "environment", "context"]}
# Tasks that come again, so that lengths are predicted, and the order that does not look at them.
TASKS: dict[str, Any] = {"environment": {"instances": 16, "held_out": 0.5}}
DRAWN: dict[str, Any] = {"length_order": "drawn"}
# Versions: 1 is the start, 2 and 3 are made by warm-up, 4 to 7 by training.
LAST = 7
# One process of every kind: the second rollout worker has the hashes of the run that is killed.
ANEW = (plan.SCHEDULER, plan.GATEWAY, plan.TRAINER, REFERENCE, "env-0", "rollout-0")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run that nothing happened to, on two rollout workers."""
    directory = tmp_path_factory.mktemp("whole")
    outcome = asyncio.run(left_alone(directory, workers=2, scheduler=DRAWN, **TASKS))
    assert sorted(outcome.steps) == list(range(2, LAST + 1))
    # The policy did change, with every batch.
    assert len({weights for _, _, weights in outcome.steps.values()}) == LAST - 1
    return outcome


async def left_alone(directory: Path, workers: int, **sections: dict[str, Any]) -> Outcome:
    async with Exact(directory, workers, as_launched=ANEW, **sections) as run:
        await run.up()
        await run.finish()
        return run.outcome()


@pytest.mark.timeout(300)
async def test_a_run_killed_in_every_phase_makes_the_same_tokens_and_parameters(
    tmp_path: Path, undisturbed: Outcome
) -> None:
    # Its engines draft and its tickets wait for longer ones, unlike the undisturbed run's: no token depends
    # on that.
    async with Exact(tmp_path, workers=1, rollout=DRAFTS, **TASKS) as run:
        await run.up()
        assert await run.until(Moment("batch_committed"))  # in warm-up: there is no checkpoint yet
        await run.kill_all()
        await run.up()
        assert await run.until(Moment("batch_committed", version=5))  # before its checkpoint, or while saving
        await run.replace("trainer")
        assert await run.until(Moment("trajectory_ready", version=5, count=3))  # sampling
        await run.replace("rollout-0")
        await run.finish()
        assert run.outcome() == undisturbed
        lines = list(read_lines(run.stack.directory / "metrics.jsonl"))
        last = lines[-1]
        assert 0 < last["accepted_tokens"] <= last["drafted_tokens"]
        sources = [last[f"drafts.{source}.drafted_tokens"] for source in ("task", "environment", "context")]
        assert sum(sources) == last["drafted_tokens"]
        # A step without one may have trained on what was played before.
        figures = [line["tokens_per_forward"] for line in lines if "tokens_per_forward" in line]
        assert figures and min(figures) >= 1
        assert last["length_prediction_factor"] >= 1 and 0 < last["length_prediction_covered"] <= 1


MOMENTS = ("trajectory_ready", "batch_planned", "batch_committed", "weights_published", "evaluation_done")
PARTS = ("all", "all", "trainer", "reference", "rollout-0", "scheduler", "env-0", "gateway")
LONGER: dict[str, Any] = {
    "scheduler": {"steps": 12},
    "trainer": {"checkpoint_every": 3, "minibatches": 2, "passes": 2, "lr": 3e-3, "kl_coefficient": 0.1},
}
# Two ranks, computing in bfloat16, of which adapters alone are trained.
ADAPTED: dict[str, Any] = {
    "trainer": {
        "ranks": 2, "dtype": "bfloat16", "lora_rank": 4, "lora_alpha": 8.0, "lr": 1e-2, "checkpoint_every": 2,
        "importance": "truncated", "minibatches": 2, "passes": 2,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_ranks_and_adapters_resume_exactly(tmp_path: Path) -> None:
    expected = await left_alone(tmp_path / "whole", 1, **ADAPTED)
    async with Exact(tmp_path / "killed", workers=1, **ADAPTED) as run:
        await run.up()
        assert await run.until(Moment("evaluation_done"))
        await run.kill_all()
        await run.up()
        assert await run.until(Moment("batch_committed", version=6))
        await run.replace("trainer")
        await run.finish()
        assert run.outcome() == expected


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return asyncio.run(left_alone(tmp_path_factory.mktemp("longer"), 2, **LONGER))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2))
async def test_ten_kills_at_random_change_nothing(tmp_path: Path, longer: Outcome, seed: int) -> None:
    """Kills everything or one service, at any event, with a reference stage beside the trainer."""
    draw, kills = random.Random(seed), 0
    async with Exact(tmp_path / "killed", workers=1, **LONGER) as run:
        await run.up()
        while kills < 10 and await run.until(Moment(draw.choice(MOMENTS), count=draw.randint(1, 2))):
            part = draw.choice(PARTS)
            kills += 1
            if part == "all":
                await run.kill_all()
                await run.up()
            else:
                await run.replace(part)
        assert kills >= 5
        await run.finish()
        assert run.outcome() == longer


# Each batch trains on groups of up to two batches before it again, with their reference log-probs.
REPLAYED: dict[str, Any] = {
    # A group whose rewards are all equal is kept, too.
    "scheduler": {"steps": 8, "batch_groups": 2, "group_size": 8, "advantage": "reinforce++"},
    "replay": {"reuse": 2, "max_age": 3, "capacity": 5, "groups": 3},
    "trainer": {"checkpoint_every": 3, "minibatches": 2, "lr": 3e-3, "kl_coefficient": 0.1},
    "evaluation": {"episodes": 4, "every_steps": 0},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_replays_resume_exactly(tmp_path: Path) -> None:
    """A batch trains again, and keeps for the next, what it would have without the kill."""
    expected = await left_alone(tmp_path / "whole", 1, **REPLAYED)
    async with Exact(tmp_path / "killed", workers=1, **REPLAYED) as run:
        await run.up()
        assert await run.until(Moment("batch_committed", version=6))  # its checkpoint is of version 6
        await run.kill_all()
        await run.up()
        assert await run.until(Moment("batch_committed", version=8))
        await run.replace("trainer")  # two steps are rolled back, with what they evicted
        assert await run.until(Moment("batch_committed", version=9))
        await run.replace("scheduler")
        await run.finish()
        assert run.outcome() == expected
        lines = list(read_lines(run.stack.directory / "metrics.jsonl"))
        assert lines[-1]["replayed_sequences"] == 3 * 8
        assert sum(line.get("replay_evicted.lost", 0) for line in lines) == 0
        counts = lines[-1]["ledger"]
        assert counts["dropped:rolled_back"] and counts["replayed"]
        assert counts["issued"] == sum(value for name, value in counts.items() if name != "issued")
        kept = list((run.stack.directory / "replay").iterdir())
        # Those of the last batch, and what a roll-back to its checkpoint may need.
        assert 2 * 8 <= len(kept) <= (5 + 3 * 2) * 8


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_replays_whose_files_are_gone_or_damaged_are_dropped_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    """On two ranks, each of which misses what is its own: nothing of such a file is trained."""
    sections = REPLAYED | {"trainer": {"ranks": 2, "lr": 3e-3}}
    async with Exact(tmp_path, workers=1, **sections) as run:
        await run.up()
        assert await run.until(Moment("batch_committed", version=5))
        directory = run.stack.directory
        for index, path in enumerate(sorted((directory / "replay").glob("*.safetensors"))):
            if index % 3 == 0:
                path.unlink(missing_ok=True)
            elif index % 3 == 1:
                path.write_bytes(path.read_bytes()[:-1] + b"?")
        await run.finish()
        lines = list(read_lines(directory / "metrics.jsonl"))
        assert lines[-1]["step"] == 8 and lines[-1]["replayed_sequences"] == 3 * 8
        assert sum(line.get("replay_evicted.lost", 0) for line in lines) >= 1
        counts = lines[-1]["ledger"]
        assert counts["dropped:columns_lost"] % 8 == 0 < counts["dropped:columns_lost"]
        assert counts["issued"] == sum(value for name, value in counts.items() if name != "issued")
        assert "is damaged: its hash is another" in run.stack.log(plan.TRAINER)
