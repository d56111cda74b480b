"""Checks what counts as a final answer, and what its checks make of it."""

import pytest

from earl.env.adapters.answers import MAX_CHARACTERS, checked, final


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer>12</answer>, no: <answer> 13\n</answer> it is", "13"),
        ("first\n\n  the last line \n\n", "the last line"),
        ("an <answer>open mark", "an <answer>open mark"),
        ("<answer></answer>", ""),
        (" \n ", ""),
        ("<answer>" + "x" * 9_999 + "</answer>", "x" * MAX_CHARACTERS),
    ],
)
def test_the_answer_in_a_text(text, answer):
    assert final(text) == answer


@pytest.mark.parametrize(
    ("task", "right", "wrong"),
    [
        ({"answer": "New  York"}, ["New York", "New\n York "], ["new york", "New York!", ""]),
        ({"answer": r"(red|green)\.?", "check": "regex"}, ["red", "green."], ["reddish", "a red", ""]),
        (
            {"answer": 1234.5, "check": "numeric"},
            ["1,234.5", "it is 1234.50", "1.2345e3"],
            ["1234.4", "none"],
        ),
        ({"answer": "0.1", "check": "numeric"}, ["0.10", ".1"], ["0.1 or 0.2", "-0.1"]),
        # Further apart than floats can tell.
        (
            {"answer": 12345678901234567890, "check": "numeric"},
            ["12345678901234567890"],
            ["12345678901234567891"],
        ),
        ({"answer": 10, "check": "numeric", "tolerance": 0.5}, ["10.5", "9.5"], ["10.6", "1e999"]),
    ],
)
def test_checks(task, right, wrong):
    score = checked(task)
    assert [score(text) for text in right] == [1.0] * len(right)
    assert [score(text) for text in wrong] == [0.0] * len(wrong)


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ({"answer": "x", "check": "fuzzy"}, "fuzzy"),
        ({"answer": ""}, "answer ''"),
        ({}, "answer None"),
        ({"answer": "(", "check": "regex"}, "regular expression"),
        ({"answer": "ten", "check": "numeric"}, "'ten'"),
        ({"answer": True, "check": "numeric"}, "True"),
        ({"answer": float("nan"), "check": "numeric"}, "nan"),
        ({"answer": 1, "check": "numeric", "tolerance": -1}, "tolerance -1"),
        ({"answer": "x", "tolerance": 0.1}, "takes no tolerance"),
    ],
)
def test_a_bad_check_is_named(task, named):
    with pytest.raises(ValueError, match=named.replace("(", r"\(")):
        checked(task)
