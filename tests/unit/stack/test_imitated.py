"""Recorded episodes at a launch: what a run accepts, keeps, and takes its teacher's score from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earl.config.check import cross_check
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.models.create import create_models
from earl.models.tokenizer import fingerprint
from earl.recorded_episodes import (
    IMITATED,
    RECORDED,
    EpisodesHeader,
    RecordedEpisode,
    RecordedTurn,
    write_episodes,
)
from earl.stack.imitated import imitated_of, keep_imitated, prompts_of, with_measured_score
from earl.stack.rundir import RunDirectory, run_path
from earl.stack.teacher_episodes import episodes_missing, record, recorded_before, recording_of
from tests.support.runs import tictactoe

LABEL = "open_spiel/tic_tac_toe"


def recorded(path: Path, config: RunConfig, rewards: list[float], **header: Any) -> Path:
    """A file of episodes, each longer than the one before, as the run would have recorded it."""
    known: dict[str, Any] = {
        "tokenizer": "5f", "environments": {LABEL: LABEL}, "prompts": prompts_of(config), **header,
    }  # fmt: skip
    label = next(iter(known["environments"]))
    episodes = [
        RecordedEpisode.of(n, label, reward, [RecordedTurn([1] * (n + 1), [2])])
        for n, reward in enumerate(rewards)
    ]
    write_episodes(path, EpisodesHeader(**known), episodes)
    return path


def run_of(directory: Path, file: Path, warmup: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    """warmup: keys beside the episodes."""
    return tictactoe(directory, warmup={"batches": 1, "episodes": str(file), **(warmup or {})}, **sections)


def test_a_run_keeps_its_episodes_and_is_resumed_without_their_file(tmp_path: Path) -> None:
    file = recorded(tmp_path / "e.jsonl", tictactoe(tmp_path), [1.0, -1.0, 0.5])
    config = run_of(tmp_path, file)
    cross_check(config)
    imitated = imitated_of(config, run_path(config))
    assert imitated is not None and len(imitated.usable[LABEL]) == 3
    assert imitated.figures == {
        "recorded_episodes": 3.0, "imitated_episodes": 3.0, "recorded_reward_mean": pytest.approx(1 / 6),
    }  # fmt: skip
    assert list(imitated.by_ticket_label(config)) == [""]
    with RunDirectory(config, resume=False) as directory:
        directory.write(config, config)
        assert (directory.path / IMITATED).read_bytes() == file.read_bytes()
    file.unlink()
    again = imitated_of(config, run_path(config))
    assert again is not None and again.file.sha256 == imitated.file.sha256
    recorded(file, config, [1.0])
    with pytest.raises(ConfigError, match="is not the file that the run began with"):
        imitated_of(config, run_path(config))


def test_a_run_without_recorded_episodes_imitates_none(tmp_path: Path) -> None:
    config = tictactoe(tmp_path)
    assert imitated_of(config, tmp_path) is None and with_measured_score(config, None) is config
    keep_imitated(None, tmp_path)
    assert not (tmp_path / IMITATED).exists()


def test_what_is_too_long_or_earned_too_little_is_left_out(tmp_path: Path) -> None:
    file = recorded(tmp_path / "e.jsonl", tictactoe(tmp_path), [1.0, 0.0, 1.0, 1.0])
    config = run_of(tmp_path, file, {"least_reward": 0.5}, rollout={"max_context_tokens": 10})
    imitated = imitated_of(config, tmp_path)
    assert imitated is not None and [each.tokens for each in imitated.usable[LABEL]] == [2, 4, 5]
    assert imitated.figures["recorded_episodes"] == 4.0 and imitated.figures["imitated_episodes"] == 3.0
    with pytest.raises(ConfigError, match=r"of 4 recorded episodes .*none of those earned .* = 2"):
        imitated_of(run_of(tmp_path, file, {"least_reward": 2.0}), tmp_path)


@pytest.mark.parametrize(
    ("header", "sections", "message"),
    [
        ({"environments": {"a/b": "a/b"}}, {}, r"has no episodes of environment open_spiel/tic_tac_toe .*a"),
        ({}, {"model": {"action_prefix": ">"}}, r"with model.action_prefix = '', and the run has '>'"),
        (
            {}, {"environment": {"reward_range": [-2, -1.5]}},
            r"has an episode of open_spiel/tic_tac_toe that earned 1, outside of reward_range = \[-2, -1.5\]",
        ),
    ],
)  # fmt: skip
def test_episodes_of_another_environment_or_prompt_are_refused(
    tmp_path: Path, header: dict[str, Any], sections: dict[str, Any], message: str
) -> None:
    file = recorded(tmp_path / "e.jsonl", tictactoe(tmp_path), [1.0], **header)
    with pytest.raises(ConfigError, match=message) as caught:
        imitated_of(run_of(tmp_path, file, **sections), tmp_path)
    assert caught.value.remedy


def test_token_ids_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    config = tictactoe(tmp_path)
    create_models(tmp_path / "first", config)
    known = fingerprint(tmp_path / "first" / "model", chat=False)
    assert known == fingerprint(tmp_path / "first" / "model", chat=False)
    file = recorded(tmp_path / "same.jsonl", config, [1.0], tokenizer=known)
    create_models(tmp_path / "second", run_of(tmp_path, file))
    other = recorded(tmp_path / "other.jsonl", config, [1.0])
    with pytest.raises(ConfigError, match="token ids of another tokenizer"):
        create_models(tmp_path / "third", run_of(tmp_path, other))


def test_the_score_is_measured_unless_it_is_given(tmp_path: Path) -> None:
    create_models(tmp_path / "big", tictactoe(tmp_path))
    teacher: dict[str, Any] = {"path": str(tmp_path / "big" / "model"), "wean": True}
    environment = {"reward_range": [-1, 1]}
    file = recorded(tmp_path / "e.jsonl", tictactoe(tmp_path), [1.0, 0.0])
    measured = run_of(tmp_path, file, teacher=teacher, environment=environment)
    cross_check(measured)
    imitated = imitated_of(measured, tmp_path)
    assert with_measured_score(measured, imitated).teacher.measured_score == 0.5
    given = run_of(tmp_path, file, teacher={**teacher, "score": 0.75}, environment=environment)
    assert with_measured_score(given, imitated).teacher.measured_score == 0.75
    with pytest.raises(ConfigError, match="'auto' has not been measured"):
        _ = measured.teacher.measured_score
    worst = run_of(
        tmp_path, recorded(tmp_path / "w.jsonl", measured, [-1.0]), teacher=teacher, environment=environment
    )
    with pytest.raises(ConfigError, match="is -1, and -1 is the least reward"):
        with_measured_score(worst, imitated_of(worst, tmp_path))


def with_teacher(directory: Path, **sections: Any) -> RunConfig:
    create_models(directory / "big", tictactoe(directory))
    teacher: dict[str, Any] = {"path": str(directory / "big" / "model"), "episodes": 24, "wean": True}
    return tictactoe(directory, teacher=teacher, environment={"reward_range": [-1, 1]}, **sections)


async def test_the_teacher_plays_in_a_run_of_its_own_once(tmp_path: Path) -> None:
    config = with_teacher(
        tmp_path, scheduler={"steps": 3, "temperature": 0.7}, trainer={"kl_coefficient": 0.1}
    )
    cross_check(config)
    assert episodes_missing(config)
    recording = recording_of(config)
    assert recording.name == "test-teacher" and recording.model.path == config.teacher.path
    assert not recording.teacher.path and not recording.frozen_stages and not recording.warmup.batches
    assert (recording.scheduler.steps, recording.evaluation.episodes) == (0, 24)
    assert recording.evaluation.record and recording.evaluation.temperature == 0.7
    played: list[bool] = []

    async def stopped(_: RunConfig, resume: bool) -> bool:
        played.append(resume)
        with RunDirectory(recording, resume=resume) as directory:
            directory.write(recording, recording)
        return False

    async def complete(_: RunConfig, resume: bool) -> bool:
        played.append(resume)
        recorded(run_path(recording) / RECORDED, recording, [1.0])
        return True

    assert await record(recording, stopped) is None
    file = await record(recording, complete)
    assert file == run_path(recording) / RECORDED and await record(recording, complete) == file
    assert played == [False, True]
    more = config.model_copy(update={"teacher": config.teacher.model_copy(update={"episodes": 25})})
    with pytest.raises(ConfigError, match="played with another evaluation"):
        recorded_before(recording_of(more))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"warmup": {"batches": 0, "episodes": "e.jsonl"}}, "nothing would be imitated"),
        ({"warmup": {"least_reward": 0.5}}, r"least_reward = 0.5 without recorded episodes"),
        ({"teacher": {"episodes": 5}}, r"teacher.episodes = 5 without teacher.path"),
        ({"evaluation": {"record": True}}, "a run that records trains nothing"),
        (
            {
                "scheduler": {"steps": 0},
                "warmup": {"batches": 0},
                "evaluation": {"record": True, "at_end": False},
            },
            "the final evaluation is what is recorded",
        ),
    ],
)  # fmt: skip
def test_what_would_not_be_imitated_or_recorded_is_refused(
    tmp_path: Path, sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        cross_check(tictactoe(tmp_path, **sections))


def test_a_warm_up_imitates_conversations_or_recorded_episodes(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"show": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    environment = {"tasks": str(tasks), "demonstration_key": "show", "held_out": 0}
    with pytest.raises(ConfigError, match="the one or the other"):
        cross_check(run_of(tmp_path, tmp_path / "e.jsonl", environment=environment))
