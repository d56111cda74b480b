"""Files of recorded episodes: what is written is read again, and what is no such file is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.errors import ConfigError
from earl.recorded_episodes import (
    MOST_ID,
    EpisodesHeader,
    RecordedEpisode,
    RecordedTurn,
    read_episodes,
    write_episodes,
)

HEADER = EpisodesHeader("5f", {"ttt": "open_spiel/tic_tac_toe"}, {"model.action_prefix": ">"}, "models/big")
TURNS = [RecordedTurn([1, 4], [2, 7]), RecordedTurn([5], [8])]
ids = st.lists(st.integers(0, MOST_ID), min_size=1, max_size=5)


def episode(index: int, reward: float = 1.0, turns: list[RecordedTurn] = TURNS) -> RecordedEpisode:
    return RecordedEpisode.of(index, "ttt", reward, turns)


def written(path: Path, rewards: list[float]) -> Path:
    write_episodes(path, HEADER, [episode(index, reward) for index, reward in enumerate(rewards)])
    return path


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.lists(st.tuples(ids, ids), min_size=1)), min_size=1))
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, played: list[tuple[float, list[tuple[list[int], list[int]]]]]
) -> None:
    path = tmp_path_factory.mktemp("recorded") / "episodes.jsonl"
    turns = [[RecordedTurn(*pair) for pair in pairs] for _, pairs in played]
    write_episodes(path, HEADER, [episode(n, reward, turns[n]) for n, (reward, _) in enumerate(played)])
    file = read_episodes(path)
    assert file.header == HEADER
    assert [each.reward for each in file.episodes] == [reward for reward, _ in played]
    assert [each.turns for each in file.episodes] == turns
    assert file.reward_mean == pytest.approx(sum(reward for reward, _ in played) / len(played))


def test_turns_without_an_action_at_the_end_are_left_out() -> None:
    open_ended = [*TURNS, RecordedTurn([9, 9], [])]
    assert episode(0, turns=open_ended).turns == TURNS
    assert episode(0, turns=open_ended).tokens == 6
    assert episode(0, turns=[RecordedTurn([9], [])]).tokens == 0


def test_episodes_are_of_a_label_or_of_a_registered_name(tmp_path: Path) -> None:
    header = EpisodesHeader("5f", {"as x": "game", "as o": "game", "other": "sums"})
    played = [RecordedEpisode.of(n, label, float(n), TURNS) for n, label in enumerate(header.environments)]
    write_episodes(tmp_path / "e.jsonl", header, played)
    file = read_episodes(tmp_path / "e.jsonl")
    rewards = [
        [each.reward for each in file.played_in(label, name)]
        for label, name in (
            ("as o", "game"),
            ("game", "game"),
            ("other", "game"),
            ("as x", "sums"),
            ("a", "b"),
        )
    ]
    assert rewards == [[1.0], [0.0, 1.0], [0.0, 1.0], [2.0], []]


def sealed(lines: list[str]) -> bytes:
    body = "".join(f"{line}\n" for line in lines).encode()
    end = {"episodes": len(lines) - 1, "sha256": hashlib.sha256(body).hexdigest()}
    return body + json.dumps(end).encode() + b"\n"


def changed(number: int, **values: object) -> Callable[[list[str]], bytes]:
    return lambda lines: sealed(
        [json.dumps(json.loads(line) | values) if n == number else line for n, line in enumerate(lines)]
    )


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda lines: "\n".join(lines).encode(), "is incomplete, or was changed"),
        (lambda lines: sealed(lines).replace(b"[2,7]", b"[2,8]"), "is incomplete, or was changed"),
        (lambda lines: sealed(lines)[:-40], "its last line is no JSON object"),
        (lambda lines: b"", "its last line is no JSON object"),
        (lambda lines: sealed(lines[:1]), "has 0 episodes"),
        (lambda lines: sealed([*lines, "[" * 100_000]), "line 4 is no JSON object"),
        (changed(0, format="earl-episodes-9"), "has the format 'earl-episodes-9'"),
        (changed(0, environments={}), "its first line lacks a key"),
        (changed(0, tokenizer=None), "its first line lacks a key"),
        (changed(1, environment="chess"), "line 2 has the environment 'chess'"),
        (changed(2, reward=None), "line 3 has the reward None"),
        (changed(2, reward=float("nan")), "line 3 has the reward nan"),
        (changed(1, turns=[]), "line 2 has no turns"),
        (changed(1, turns=[[[], [1]]]), "or one that is no pair"),
        (changed(1, turns=[[[1], [-1]]]), "or one that is no pair"),
        (changed(1, turns=[[[1], [MOST_ID + 1]]]), "or one that is no pair"),
        (changed(1, turns=[[[True], [1]]]), "or one that is no pair"),
    ],
)
def test_what_is_no_whole_file_is_refused(
    tmp_path: Path, edit: Callable[[list[str]], bytes], message: str
) -> None:
    path = written(tmp_path / "episodes.jsonl", [1.0, -1.0])
    lines = path.read_text().splitlines()[:-1]
    assert read_episodes(path).reward_mean == 0.0
    path.write_bytes(edit(lines))
    with pytest.raises(ConfigError, match=message) as caught:
        read_episodes(path)
    assert caught.value.remedy


def test_a_file_that_is_not_there_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="do not exist") as caught:
        read_episodes(tmp_path / "none.jsonl")
    assert "evaluation.record" in caught.value.remedy
