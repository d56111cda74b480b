"""reasoning-gym's tasks as environments: instances, what counts as the answer, scores."""

import pytest

from earl.env.adapters.held_out import DRAWS, EVALUATION_BIT, belongs_to_evaluation, drawn, is_evaluation
from earl.env.adapters.reasoning_gym import LEFT_OUT, extracted
from earl.env.serve import load

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2, "operators": ["+"]}
SUMS |= {"allow_parentheses": False}


@pytest.fixture(scope="module")
def tasks():
    return load("earl.env.adapters.reasoning_gym:environments")


def test_an_episode(tasks):
    sums = tasks["reasoning_gym/basic_arithmetic"]()
    first = sums.reset(7, SUMS | {"instruction": "Answer with the number only."})
    question, instruction = first.text.splitlines()
    assert instruction == "Answer with the number only."
    left, right = question.removeprefix("Calculate ").removesuffix(".").split(" + ")
    result = sums.step(f"The sum of {left} and {right} is {int(left) + int(right)}.")
    assert (result.reward, result.done) == (1.0, True)
    assert result.metrics == {"win": 1.0, "score": 1.0, "answered": 1.0}
    sums.reset(7, SUMS)
    assert sums.step("I cannot say.").metrics == {"win": 0.0, "score": 0.0, "answered": 0.0}


def test_instances_are_the_seeds_and_held_out(tasks):
    sums = tasks["reasoning_gym/basic_arithmetic"]()
    training = {sums.reset(seed, SUMS).text for seed in range(300)}
    held_out = {sums.reset(seed | EVALUATION_BIT, SUMS).text for seed in range(60)}
    assert len(training) > 200 and len(held_out) > 40
    assert not training & held_out
    assert sums.reset(9, SUMS) == sums.reset(9, SUMS)


def test_a_task_with_one_instance_gives_it_to_both():
    asked = []
    for seed in (1, 1 | EVALUATION_BIT):
        assert drawn(seed, lambda number: asked.append(number) or "the one", str) == "the one"
    assert len(asked) == 1 + DRAWS and len(set(asked)) > DRAWS // 2
    assert is_evaluation(EVALUATION_BIT) and not is_evaluation(EVALUATION_BIT - 1)
    share = sum(belongs_to_evaluation(str(number)) for number in range(4000)) / 4000
    assert share == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize(
    ("text", "right", "answer"),
    [
        ("7 + 5 = 12", "12", "12"),
        ("about 1,234.50 or so", "3", "1234.50"),
        ("from -3 to - 4", "9", "4"),
        ("<answer> 4 </answer> 9 <answer>\n5</answer> 10", "5", "5"),
        ("no number", "12", ""),
        ("first\n\n the last line \n", "abc", "the last line"),
        ("1\n2", None, "2"),
        ("", "12", ""),
        ("", "abc", ""),
    ],
)
def test_what_counts_as_the_answer(text, right, answer):
    assert extracted(text, right) == answer


def test_bad_tasks(tasks):
    sums = tasks["reasoning_gym/basic_arithmetic"]()
    for task, said in (({"seed": 1}, "seed"), ({"max_term": 2}, "max_term"), ({"min_terms": 0}, "min_terms")):
        with pytest.raises((ValueError, TypeError, AssertionError), match=said):
            sums.reset(1, task)


def test_every_task_starts_and_takes_an_answer(tasks):
    """Quick ones of every kind; that no scoring runs the answer as code is why some are left out."""
    assert len(tasks) == 96 and not {f"reasoning_gym/{name}" for name in LEFT_OUT} & set(tasks)
    for name in ("chain_sum", "letter_counting", "simple_equations", "maze", "gsm_symbolic", "graph_color"):
        task = tasks[f"reasoning_gym/{name}"]()
        assert task.reset(1, {}).text
        result = task.step("__import__('sys').exit(3)")
        assert result.done and result.reward < 1
