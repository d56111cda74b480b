"""Whole runs against a frozen version of the policy: its tokens, exact tickets, bit-exact over kills."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from earl.config.run import RunConfig
from earl.env.adapters.open_spiel import TicTacToe
from earl.models.tokenizer import Tokenizer
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.process.client import EngineProcess
from services.rollout.episode.columns import TokenColumns
from services.rollout.service import episode_bounds
from services.rollout.worker.actions import AgentBounds, sampled
from services.rollout.worker.agent import frozen_seat
from services.rollout.worker.ticket import EpisodeTicket
from services.scheduler.state.seeds import sample_seeds
from services.scheduler.state.tickets import Purpose
from services.trainer.checkpoint.reader import model_tensors, saved_tensors
from tests.support.exact import Exact, Moment, Outcome
from tests.support.runs import tictactoe
from tests.support.seat_histories import begun
from tests.support.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

FROZEN: dict[str, Any] = {
    "environment": {
        "seats": 2,
        "opponent": "frozen",
        "frozen_every": 2,
        "evaluation_tasks": [{"opponent": "random", "player": player} for player in (0, 1)],
    },
    "warmup": {"batch_episodes": 24},
    # A checkpoint of every version: version 4 and 6 are trained against 3 and 5, which two ranks gather.
    "trainer": {"checkpoint_every": 1, "ranks": 2},
    "scheduler": {"steps": 4, "batch_groups": 2, "group_size": 4, "transcripts": 8},
}
# Trajectories: two of each episode of warm-up, one of each of training.
TRAINED = 2 * 24 * 2 + 4 * 2 * 4


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, RunConfig, Path]:
    """A run on two rollout workers that nothing happened to, its settings and its directory."""

    async def played() -> tuple[Outcome, RunConfig, Path]:
        directory = tmp_path_factory.mktemp("whole")
        async with Exact(directory, 2, as_launched=True, **FROZEN) as run:
            await run.up()
            await run.finish()
            return run.outcome(), run.stack.config, run.stack.directory

    return asyncio.run(played())


def lines(directory: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / name).read_text(encoding="utf-8").splitlines()]


def trained(directory: Path) -> list[list[dict[str, Any]]]:
    """The conversations of each group that was trained, in the order of their tickets."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for sample in lines(directory, "samples.jsonl"):
        if not sample["evaluation"]:
            groups.setdefault(sample["group"], []).append(sample)
    return [sorted(group, key=lambda sample: sample["ticket"]) for group in groups.values()]


def test_one_seat_of_an_episode_has_a_ticket(undisturbed: tuple[Outcome, RunConfig, Path]) -> None:
    directory = undisturbed[2]
    steps = lines(directory, "metrics.jsonl")
    assert sum(step["sequences"] for step in steps) == TRAINED == steps[-1]["ledger"]["trained"]
    assert not any(name.startswith("dropped") for name in steps[-1]["ledger"])
    groups = trained(directory)
    assert len(groups) == 4 * 2
    for group in groups:
        # Seat 0 moves first: its conversations are all there. A seat 1 without a turn has none.
        assert [sample["seat"] for sample in group].count(0) == 2
        for sample in group:
            assert sample["seat"] == (sample["ticket"] - group[0]["ticket"]) % 2
    versions = {(*sample["version"], sample["opponent"]) for group in groups for sample in group}
    assert versions == {(3, 3, 3), (4, 4, 3), (5, 5, 5), (6, 6, 5)}


def test_frozen_versions_are_kept_as_they_were_trained(undisturbed: tuple[Outcome, RunConfig, Path]) -> None:
    directory = undisturbed[2]
    kept = {path.name for path in (directory / "opponents").iterdir()}
    assert {"step-5", "step-7"} <= kept <= {"step-3", "step-5", "step-7"}
    for name in kept:
        checkpoint = directory / "checkpoints" / name
        if checkpoint.is_dir():
            saved = saved_tensors(
                directory / "checkpoints", int(name[5:]), directory / "model", torch.float32
            )
            frozen = dict(model_tensors(directory / "opponents" / name, torch.float32))
            assert all(torch.equal(tensor, frozen[tensor_name]) for tensor_name, tensor in saved)


class EngineSampler:
    """An engine as what samples for a seat."""

    def __init__(self, engine: EngineProcess, version: int) -> None:
        self.generate, self.release = engine.generate_all, engine.release
        self.version = version


async def replayed(
    sampler: EngineSampler, bounds: AgentBounds, sample: dict[str, Any], sample_seed: int
) -> list[str]:
    """The observations of a sample's learner if it does what it did, and `sampler` plays the other seat."""
    ticket = EpisodeTicket(
        ticket_id=sample["ticket"], attempt=1, fence=1, publish=True, scripted=False, environment="",
        label="", task_json="", env_seed=0, sample_seed=sample_seed, min_version=1, temperature=1.0,
        episode_s=30.0, lease_s=30.0, max_turns=5, seat=sample["seat"], session_seats=2,
        frozen_version=sampler.version,
    )  # fmt: skip
    choose, columns = sampled(frozen_seat(ticket, 1 - ticket.seat), bounds, sampler), TokenColumns()
    actions = [turn["text"] for turn in sample["turns"] if turn["role"] == "assistant"]
    environment, shown = begun(TicTacToe, 0, {})
    texts: list[str] = []
    while True:
        if shown.seat == ticket.seat:
            texts.append(shown.text)
            if not actions:
                return texts
            action = actions.pop(0)
        else:
            action = await choose(shown, columns)
        result = environment.step(action)
        shown = result.observation
        if result.done:
            return texts


@pytest.mark.parametrize(("model", "same"), [("opponents/step-5", True), ("model", False)])
async def test_the_other_seat_is_what_the_frozen_version_samples(
    undisturbed: tuple[Outcome, RunConfig, Path], model: str, same: bool
) -> None:
    _, config, directory = undisturbed
    tokenizer = Tokenizer.load(directory / "model", config.model)
    [bounds] = episode_bounds(config, directory, tokenizer).values()
    engine = EngineProcess(
        EngineSpec(
            name="again",
            model_dir=str(directory / model),
            device="cpu",
            max_context_tokens=128,
            deterministic=True,
            stop_ids=tuple(sorted(tokenizer.stop_ids)),
        )
    )
    await engine.start()
    try:
        differ = count = 0
        for group in trained(directory):
            seeds = sample_seeds(config.seed, Purpose.TRAIN, group[0]["index"], 4)
            for sample in group:
                if sample["opponent"] != 5:
                    continue
                seed = seeds[sample["ticket"] - group[0]["ticket"]]
                texts = await replayed(EngineSampler(engine, 5), bounds, sample, seed)
                differ += texts != [turn["text"] for turn in sample["turns"] if turn["role"] == "user"]
                count += 1
    finally:
        await engine.stop()
    assert count >= 8
    assert (differ == 0) is same


async def test_opponents_change_while_older_episodes_are_played(tmp_path: Path) -> None:
    scheduler = {"steps": 6, "batch_groups": 2, "group_size": 4, "transcripts": 8, "staleness": 1}
    config = tictactoe(
        tmp_path, environment=FROZEN["environment"], scheduler=scheduler, trainer={"checkpoint_every": 3}
    )
    async with Stack(config) as stack:
        await stack.up(*stack.processes)
        assert await stack.ended("trainer", 120.0) == 0, stack.log("trainer")[-4000:]
        assert await stack.ended("rollout-0", 60.0) == 0, stack.log("rollout-0")[-4000:]
    ledger = lines(stack.directory, "metrics.jsonl")[-1]["ledger"]
    assert ledger["trained"] == 2 * 16 + 6 * 2 * 4
    assert not any(name.startswith("dropped") for name in ledger), ledger
    assert config.frozen is not None
    opponents = set()
    for sample in (sample for group in trained(stack.directory) for sample in group):
        oldest = sample["version"][0]
        # A ticket allows tokens that are at most one version older than it was issued for.
        allowed = {config.frozen.version_at(version) for version in (oldest, max(2, oldest - 1))}
        assert sample["opponent"] in allowed
        opponents.add(sample["opponent"])
    assert opponents == {2, 4, 6}


async def test_a_killed_run_makes_the_same_tokens_and_parameters(
    tmp_path: Path, undisturbed: tuple[Outcome, RunConfig, Path]
) -> None:
    async with Exact(tmp_path, workers=1, **FROZEN) as run:
        await run.up()
        # The trainer goes back to version 4, whose opponent, version 3, has to come from disk.
        assert await run.until(Moment("batch_committed", version=4))
        assert await run.until(Moment("trajectory_ready", version=4, count=3))
        await run.kill_all()
        await run.up()
        # The next worker has to get the frozen version from the trainer, which has long published newer ones.
        assert await run.until(Moment("trajectory_ready", version=5, count=2))
        await run.replace("rollout-0")
        await run.finish()
        assert run.outcome() == undisturbed[0]
