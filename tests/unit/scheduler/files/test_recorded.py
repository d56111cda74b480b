"""The file of a recording: made once, when its evaluation has ended, whatever happened before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from earl.config.run import RunConfig
from earl.models.create import create_models
from earl.models.tokenizer import fingerprint
from earl.recorded_episodes import RECORDED, RecordedTurn, read_episodes
from services.scheduler.files.recorded import PART, EpisodeRecorder
from services.scheduler.ledger.evaluation import FINAL
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.tickets import EpisodeResult, Purpose, Ticket
from tests.support.runs import tictactoe

LABEL = "open_spiel/tic_tac_toe"


@pytest.fixture(name="config")
def recording(tmp_path: Path) -> RunConfig:
    sections: dict[str, Any] = {"evaluation": {"record": True}, "warmup": {"batches": 0}}
    config = tictactoe(tmp_path, scheduler={"steps": 0}, **sections)
    create_models(tmp_path, config)
    return config


def ticket(index: int, evaluation: str = FINAL) -> Ticket:
    return Ticket(
        id=index + 1, group=1, purpose=Purpose.EVALUATE, index=index, evaluation=evaluation, env_seed=1,
        sample_seed=2, min_version=1, temperature=1.0,
    )  # fmt: skip


TURNS = [RecordedTurn([1, 4], [2])]


def test_a_scheduler_that_starts_again_finishes_the_file(tmp_path: Path, config: RunConfig) -> None:
    first = EpisodeRecorder(config, tmp_path)
    first.accepted(ticket(1), EpisodeResult(reward=0.5), TURNS)
    first.accepted(ticket(0), EpisodeResult(reward=-1.0), TURNS)
    first.accepted(ticket(2, "start"), EpisodeResult(), TURNS)
    first.accepted(ticket(3), EpisodeResult(), [RecordedTurn([1], [])])  # it never acted
    running = EvaluationRecord(name=FINAL, version=1, episodes=3, done=2)
    first.write(None)
    first.write(running)
    first.close()
    assert not (tmp_path / RECORDED).exists()
    again = EpisodeRecorder(config, tmp_path)
    again.accepted(ticket(0), EpisodeResult(reward=1.0), TURNS)  # played again: the last one counts
    again.write(msgspec.structs.replace(running, failed=1))
    file = read_episodes(tmp_path / RECORDED)
    assert [episode.reward for episode in file.episodes] == [1.0, 0.5] and file.reward_mean == 0.75
    assert [json.loads(episode.line)["index"] for episode in file.episodes] == [0, 1]
    assert file.episodes[0].turns == TURNS
    assert file.header.environments == {LABEL: LABEL}
    assert file.header.tokenizer == fingerprint(tmp_path / "model", chat=False)
    assert not (tmp_path / PART).exists()
    before = (tmp_path / RECORDED).read_bytes()
    later = EpisodeRecorder(config, tmp_path)
    later.accepted(ticket(0), EpisodeResult(), TURNS)
    later.write(msgspec.structs.replace(running, failed=1))
    again.close()
    assert (tmp_path / RECORDED).read_bytes() == before


def test_another_run_records_nothing(tmp_path: Path) -> None:
    recorder = EpisodeRecorder(tictactoe(tmp_path), tmp_path)
    recorder.accepted(ticket(0), EpisodeResult(), TURNS)
    recorder.write(EvaluationRecord(name=FINAL, version=1, episodes=1, done=1))
    recorder.close()
    assert list(tmp_path.iterdir()) == []
