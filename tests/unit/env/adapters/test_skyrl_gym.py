"""SkyRL-gym's graded questions: where they come from, what they score, and what is not served."""

import json
from typing import Any

import pytest
import skyrl_gym

from earl.env.adapters import skyrl_gym as adapter
from earl.env.adapters.held_out import EVALUATION_BIT

ROWS = [{"question": f"What is {n} + {n}?", "answer": f"Twice {n}.\n#### {2 * n:,}"} for n in range(600, 640)]
ONE = {"rows": [{"question": "How many?", "answer": 1234}]}


def test_one_answer():
    task: Any = adapter.Gsm8k()
    first = task.reset(1, ONE)
    assert first.text == f"How many?\n{adapter.Gsm8k.instruction}"
    result = task.step("It is 1,234.\n#### 1,234")
    assert (result.reward, result.done, result.metrics) == (1.0, True, {"win": 1.0, "turns": 1.0})
    assert result.observation.text == "the answer is 1234"
    for wrong in ("1234", "#### 12", "####", ""):
        task.reset(1, ONE)
        assert task.step(wrong).reward == 0.0


def test_several_tries():
    task: Any = adapter.Gsm8kMultiTurn()
    task.reset(1, ONE | {"max_turns": 3})
    first = task.step("#### 7")
    assert (
        not first.done and first.reward == pytest.approx(0.2 / 3) and "#### ANSWER" in first.observation.text
    )
    assert task.step("no idea").reward == 0.0
    last = task.step("#### 1234")
    assert (last.reward, last.done, last.metrics) == (1.0, True, {"win": 1.0, "turns": 3.0})
    task.reset(1, ONE | {"max_turns": 1})
    assert task.step("#### 7").metrics["win"] == 0.0


def test_aime():
    task: Any = adapter.Aime()
    task.reset(1, ONE)
    assert task.step("so\nAnswer: 1234").reward == 1.0
    task.reset(1, ONE)
    assert task.step("so it is 1234").reward == -1.0


def test_questions_are_the_seeds_and_held_out(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for task in ({"rows": ROWS}, {"file": str(path)}, {}):
        environment = adapter.Gsm8k()
        training = {environment.reset(seed, task).text for seed in range(30)}
        evaluation = {environment.reset(seed | EVALUATION_BIT, task).text for seed in range(30)}
        assert len(training) > 10 and len(evaluation) > 3 and not training & evaluation
        assert environment.reset(5, task) == environment.reset(5, task)
    answers = adapter.Gsm8k()
    question = answers.reset(5, {"file": str(path)}).text
    assert answers.step(f"#### {2 * int(question.split()[2])}").reward == 1.0


def test_a_file_that_changed_is_read_anew(tmp_path):
    path = tmp_path / "one.jsonl"
    for answer in ("1", "22"):
        path.write_text(json.dumps({"question": "?", "answer": answer}))
        task: Any = adapter.Gsm8k()
        task.reset(1, {"file": str(path)})
        assert task.step(f"#### {answer}").reward == 1.0


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"question": "?"}, "unknown task key 'question'; known are rows, file, instruction"),
        ({"rows": []}, r"rows \[\] is not a list of"),
        ({"rows": [{"question": "?"}]}, "is not a list of"),
        ({"rows": ROWS, "file": "x"}, "rows and file are both given"),
        ({"file": "/nowhere.jsonl"}, "file '/nowhere.jsonl' is not on this host"),
        ({"max_turns": 2}, "unknown task key 'max_turns'"),
    ],
)
def test_bad_tasks_are_named(task, message):
    with pytest.raises(ValueError, match=message):
        adapter.Gsm8k().reset(0, task)


@pytest.mark.parametrize("line", ["no json", "[]", '{"question": 1, "answer": "2"}', ""])
def test_bad_files_are_named(tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=r"line 1 of file|is empty"):
        adapter.Gsm8k().reset(0, {"file": str(path)})


def test_what_is_not_served_is_named():
    served = {cls.name.removeprefix("skyrl_gym/") for cls in adapter.environments()}
    assert set(skyrl_gym.registry) == served | set(adapter.LEFT_OUT)
