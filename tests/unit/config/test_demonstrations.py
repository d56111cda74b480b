"""Conversations to imitate: which are, and what is said of those that are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from earl.config.demonstrations import DemonstratedTurn, demonstration
from earl.config.environment import EnvironmentConfig
from earl.config.load import load_run
from earl.config.task_set import task_set_of
from earl.errors import ConfigError
from tests.support.paths import ROOT

ASK = {"role": "user", "content": "2 + 3"}
ANSWER = {"role": "assistant", "content": "5"}
RESULT = {"role": "tool", "content": "right"}


def test_turns_are_pairs() -> None:
    assert demonstration([ASK, ANSWER, RESULT, ANSWER]) == [
        DemonstratedTurn("user", "2 + 3", "5"),
        DemonstratedTurn("tool", "right", "5"),
    ]


@pytest.mark.parametrize(
    "messages, said",
    [
        (None, "no list of messages"),
        ([], "no list of messages"),
        ([ANSWER], "message 1 is an answer to nothing"),
        ([ASK, ANSWER, ANSWER], "message 3 is an answer to nothing"),
        ([ASK, RESULT, ANSWER], "message 2 follows one that has no answer"),
        ([ASK, ANSWER, ASK], "last message is no answer"),
        ([ASK, "5"], "message 2 is no object"),
        (
            [{"role": "system", "content": "x"}, ASK, ANSWER],
            "message 1 has the role system: set",
        ),
        ([ASK, {**ANSWER, "tool_calls": [{"id": 1}]}], "message 2 has 'tool_calls', which would be lost"),
        ([{"role": "human", "content": "x"}, ANSWER], "role 'human', not user"),
        ([ASK, {"role": "assistant", "content": None}], "message 2 has no text"),
        ([ASK, {"role": "assistant", "content": ""}], "message 2 has no text"),
    ],
)
def test_what_is_no_conversation_is_said(messages: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        demonstration(messages)


def test_a_row_without_one_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"n": 1, "do": [ASK, ANSWER]}) + "\n" + json.dumps({"n": 2}) + "\n")
    section = EnvironmentConfig(name="e", tasks=str(path), held_out=0.0)
    assert task_set_of(section, "e") is not None
    with pytest.raises(ConfigError, match=r"row 2 has no conversation as 'do'.*no list of messages"):
        task_set_of(section.model_copy(update={"demonstration_key": "do"}), "e")


def test_the_solution_does_not_decide_who_is_held_out(tmp_path: Path) -> None:
    """Problems with several solutions are on one side, and on the same side as without solutions."""
    plain, shown = tmp_path / "plain.jsonl", tmp_path / "shown.jsonl"
    plain.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(40)))
    other = {**ANSWER, "content": "five"}
    rows = ({"n": n, "do": [ASK, answer]} for n in range(40) for answer in (ANSWER, other))
    shown.write_text("".join(json.dumps(row) + "\n" for row in rows))
    without = task_set_of(EnvironmentConfig(name="e", tasks=str(plain), held_out=0.5), "e")
    solved = EnvironmentConfig(name="e", tasks=str(shown), held_out=0.5, demonstration_key="do")
    tasks = task_set_of(solved, "e")
    assert tasks is not None and without is not None
    assert list(tasks.held_out) == [2 * n + which for n in without.held_out for which in (0, 1)]


@pytest.mark.parametrize(
    "overrides, reason",
    [
        ({}, "demonstration_key = 'do'.*without tasks"),
        ({"tasks": "t.jsonl", "task": '{ seats = "all" }', "seats": "2"}, "have 2 seats"),
        ({"tasks": "t.jsonl", "seats": "2", "opponent": "frozen"}, "have 2 seats"),
    ],
)
def test_a_key_that_cannot_be_followed_is_refused(overrides: dict[str, str], reason: str) -> None:
    given = [("environment.demonstration_key", "do")]
    given += [(f"environment.{key}", value) for key, value in overrides.items()]
    with pytest.raises(ConfigError, match=reason):
        load_run(ROOT / "examples" / "tictactoe.toml", given)
