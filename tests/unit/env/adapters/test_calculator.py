"""The calculator's arithmetic, and episodes of the two-turn task played by its own rules."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.env.adapters.arithmetic import MAX_BITS, MAX_CHARACTERS, ArithmeticFault, evaluate, number_text
from earl.env.adapters.calculator import ANSWERED, CALLED, COMPUTED, Calculator
from earl.env.adapters.held_out import EVALUATION_BIT
from earl.env.base import Observation
from earl.env.serve import load
from earl.env.tool_calls import Action, ToolCall, render


def combined(left, operator, right):
    (a, x), (b, y) = left, right
    value = None
    if x is not None and y is not None:
        value = {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else None}[operator]
    return f"({a}) {operator} ({b})", value


numbers = st.integers(-9999, 9999)
expressions = st.recursive(
    numbers.map(lambda number: (str(number), Fraction(number))),
    lambda inner: st.builds(combined, inner, st.sampled_from("+-*/"), inner),
    max_leaves=8,
)


@given(expressions)
def test_values_are_exact(case):
    text, value = case
    if len(text) > MAX_CHARACTERS or value is None:
        with pytest.raises(ArithmeticFault):
            evaluate(text)
    else:
        assert evaluate(text) == value


@given(st.text(max_size=150))
def test_any_text_is_a_value_or_a_fault(text):
    try:
        assert isinstance(evaluate(text), Fraction)
    except ArithmeticFault as fault:
        assert str(fault)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "two + two",
        "__import__('os').system('true')",
        "().__class__",
        "[1][0]",
        "1 if 1 else 2",
        "True + 1",
        "1j",
        "2 ** 9",
        "7 // 2",
        "7 % 2",
        "1 / 0",
        "1e999",
        "1,234",
        "f'{1}'",
        "(" * 60 + "1" + ")" * 60,
        "*".join(["9" * 29] * 4),
        "\0",
    ],
)
def test_what_the_calculator_refuses(text):
    with pytest.raises(ArithmeticFault):
        evaluate(text)


def test_numbers_stay_bounded_on_the_way():
    assert evaluate("9" * 70).numerator.bit_length() < MAX_BITS
    with pytest.raises(ArithmeticFault, match="too large"):
        evaluate("9" * 50 + "*" + "9" * 50)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("734 * 89", "65326"),
        (" 3 - 10", "-7"),
        ("1 / 4", "0.25"),
        ("-2 / 3", "-0.666667"),
        ("-(2 + 1.5) * +2", "-7"),
        ("1 / 3 * 3", "1"),
        ("0.1 + 0.2", "0.3"),
    ],
)
def test_what_the_calculator_shows(text, wanted):
    assert number_text(evaluate(text)) == wanted


# --- episodes -------------------------------------------------------------------------------------


def begun(seed=3, **task):
    calculator = load("earl.env.adapters.calculator:environments")["tools/calculator"]()
    assert isinstance(calculator, Calculator)
    first = calculator.reset(seed, task)
    return calculator, first, first.text.removeprefix("What is ").partition("?")[0]


def seen(result) -> Observation:
    assert isinstance(result.observation, Observation)
    return result.observation


def called(expression):
    return render(ToolCall("calculator", {"expression": expression}))


def test_a_problem_is_called_and_answered():
    calculator, first, problem = begun()
    assert first.role == "user" and "<tool_call>" in first.text
    turn = calculator.step(f"Let me see. {called(problem)}")
    assert (turn.done, seen(turn).role) == (False, "tool")
    assert turn.reward == pytest.approx(CALLED + COMPUTED)
    end = calculator.step(f"It is {int(seen(turn).text):,}.")
    assert (end.done, end.reward) == (True, ANSWERED)
    assert end.metrics == {"win": 1.0, "called": 1.0, "computed": 1.0}


def test_a_call_that_a_client_sent_as_such_counts_as_one_in_the_text():
    calculator, _, problem = begun()
    turn = calculator.step(Action("let me see", [ToolCall("calculator", {"expression": problem}, "c1")]))
    assert turn.reward == pytest.approx(CALLED + COMPUTED)
    calculator, _, _ = begun()
    assert calculator.step(Action(called("1 + 1"), [ToolCall("calculator", "1 + 1", "c1")])).done


def test_partial_credit():
    calculator, _, problem = begun()
    turn = calculator.step(called("1 + 1"))
    assert (seen(turn).text, turn.reward) == ("2", CALLED)
    end = calculator.step("2")
    assert (end.reward, end.metrics) == (0.0, {"win": 0.0, "called": 1.0, "computed": 0.0})
    # The head's own answer counts in turn 2, whatever the call computed.
    calculator, _, problem = begun()
    calculator.step(called("1 + 1"))
    assert calculator.step(number_text(evaluate(problem))).metrics["win"] == 1.0


@pytest.mark.parametrize(
    "action",
    [
        "65326",
        called("x"),
        called("9 / 0"),
        "<tool_call>{}</tool_call>",
        "",
        f"<think>{called('1 + 1')}</think>2",
    ],
)
def test_a_turn_without_a_call_that_works_ends_the_episode(action):
    calculator, _, _ = begun()
    end = calculator.step(action)
    assert (end.done, end.reward) == (True, 0.0)
    assert end.metrics == {"win": 0.0, "called": 0.0, "computed": 0.0}
    assert "\n" not in seen(end).text


def test_legal_actions_hold_the_form_and_one_right_way_in_four():
    calculator, first, problem = begun(terms=3)
    assert len(first.legal_actions) == 4 and called(problem) in first.legal_actions
    values = {evaluate(action.split('"')[-2]) for action in first.legal_actions}
    assert evaluate(problem) in values and len(values) > 1
    turn = calculator.step(called(problem))
    assert list(seen(turn).legal_actions) == [number_text(evaluate(problem)), problem.split()[0]]


def test_seeds_tasks_and_held_out_problems():
    assert begun(5)[1] == begun(5)[1]
    small = {"digits": 1, "terms": 2, "operators": "+", "instruction": "Call it."}
    training = {begun(seed, **small)[2] for seed in range(400)}
    held_out = {begun(seed | EVALUATION_BIT, **small)[2] for seed in range(100)}
    assert held_out and not training & held_out
    assert begun(1, **small)[1].text.endswith("? Call it.")
    assert begun(1, instruction="", operators="*")[1].text.endswith("?")
    for bad in ({"digit": 3}, {"digits": 0}, {"terms": True}, {"operators": "+/"}, {"operators": ""}):
        with pytest.raises(ValueError):
            begun(1, **bad)
