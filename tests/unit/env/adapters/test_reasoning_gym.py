"""reasoning-gym's tasks as environments: instances, what counts as the answer, scores."""

import random

import numpy
import pytest

from earl.env.adapters.held_out import DRAWS, EVALUATION_BIT, belongs_to_evaluation, drawn, is_evaluation
from earl.env.adapters.reasoning_gym import LEFT_OUT, extracted
from earl.env.adapters.safe_answers import FORMS, harmless
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


@pytest.mark.parametrize("name", ["list_functions", "pool_matrix"])
def test_the_chance_of_the_process_is_neither_drawn_nor_changed(tasks, name):
    task = tasks[f"reasoning_gym/{name}"]()
    random.seed(1)
    numpy.random.seed(1)
    kept, state = random.getstate(), numpy.random.get_state(legacy=False)["state"]
    seen = [task.reset(seed, {}).text for seed in range(126, 134)]
    assert random.getstate() == kept
    now = numpy.random.get_state(legacy=False)["state"]
    assert now["pos"] == state["pos"] and (now["key"] == state["key"]).all()
    numpy.random.seed(2)
    random.seed(2)
    assert seen == [task.reset(seed, {}).text for seed in range(126, 134)]


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
        ("so it is\n1 0\n\n0 1\n", "0 0\n1 1", "1 0\n0 1"),
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
    """Quick ones of every kind, and of those whose graders would run an answer as code."""
    assert len(tasks) == 104 and not {f"reasoning_gym/{name}" for name in LEFT_OUT} & set(tasks)
    for name in ("chain_sum", "letter_counting", "maze", "gsm_symbolic", "graph_color", *FORMS):
        task = tasks[f"reasoning_gym/{name}"]()
        assert task.reset(1, {}).text
        result = task.step("<answer>__import__('sys').exit(3)</answer>")
        assert result.done and result.reward < 1


@pytest.mark.parametrize("name", list(FORMS))
def test_right_answers_score_where_graders_evaluate(tasks, name):
    task = tasks[f"reasoning_gym/{name}"]()
    task.reset(2, {})
    right = task._entry["answer"]
    assert task.step(f"I say\n<answer>{right}</answer>").metrics["win"] == 1.0
    assert task.step(right).metrics["win"] == 1.0


def test_harmless_answers_of_another_form_score_as_reasoning_gym_scores_them(tasks):
    matrix = tasks["reasoning_gym/binary_matrix"]()
    matrix.reset(2, {})
    rows = [[int(cell) for cell in row.split()] for row in matrix._entry["answer"].splitlines()]
    assert matrix.step(f"<answer>{rows}</answer>").reward == 0.1
    integral = tasks["reasoning_gym/simple_integration"]()
    integral.reset(2, {})
    assert integral.step(f"<answer>{integral._entry['answer']} + 3 - 3</answer>").metrics["win"] == 1.0


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("binary_matrix", "[[print(1)]]"),
        ("binary_matrix", "[1" * 3_000),
        ("string_insertion", "['a'] * 10"),
        ("n_queens", "open('x')"),
        ("countdown", "9**9**9"),
        ("countdown", "exit()"),
        ("puzzle24", "(1).__class__"),
        ("puzzle24", "1/0"),
        ("simple_integration", "x.__class__"),
        ("simple_integration", "x**9**9"),
        ("simple_integration", "((x**9)**9)**9"),
        ("simple_integration", "exp(exp(exp(exp(x))))"),
        ("simple_integration", "lambda: x"),
        ("simple_integration", "9999999999999999"),
        ("simple_integration", "y"),
        ("simple_integration", "eval('x')"),
        ("simple_integration", "1e300*x"),
        ("polynomial_multiplication", "+".join(["x"] * 300)),
        ("polynomial_multiplication", "[x]"),
    ],
)
def test_what_must_not_be_evaluated(name, answer):
    metadata = {"variable": "x"} if name == "simple_integration" else {"variables": ["x"]}
    assert not harmless(name, answer, {"answer": "1", "metadata": metadata})


def test_formulas_that_tasks_ask_for():
    entry = {"answer": "1", "metadata": {"variable": "x"}}
    for answer in ("-34*x**8/15 - 5*x/4 + C", "-4*(-2*x - 8)**(3/2)/3 + C", "E**(2*x)*sin(x) - exp(x)"):
        assert harmless("simple_integration", answer, entry)
