"""Checks what a task may say, and which move a text says."""

import pytest

from earl.env.adapters import move_text
from earl.env.adapters.settings import ChoiceSetting, Number, TableSetting, Text, Whole, checked

KEYS = {
    "turns": Whole(64, 1, 100),
    "share": Number(0.5, 0, 1),
    "opponent": ChoiceSetting("random", "minimax"),
    "slippery": ChoiceSetting(True, False),
    "note": Text(None, 5),
    "parameters": TableSetting(),
}


def test_defaults_and_values():
    assert checked({}, KEYS) == {
        "turns": 64,
        "share": 0.5,
        "opponent": "random",
        "slippery": True,
        "note": None,
        "parameters": {},
    }
    given = {"turns": 1, "share": 1, "opponent": "minimax", "slippery": False, "note": "12345"}
    assert checked(given, KEYS) == given | {"share": 1.0, "parameters": {}}


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"turn": 1}, "unknown task key 'turn'; known are turns, share, opponent"),
        ({"turns": 0}, "turns 0 is not a whole number between 1 and 100"),
        ({"turns": True}, "turns True is not a whole number"),
        ({"turns": 1.0}, "turns 1.0 is not"),
        ({"turns": None}, "turns None is not"),
        ({"share": float("nan")}, "share nan is not a number between 0 and 1"),
        ({"share": "1"}, "share '1' is not"),
        ({"opponent": "god"}, "opponent 'god' is not one of 'random', 'minimax'"),
        ({"slippery": 1}, "slippery 1 is not one of True, False"),
        ({"note": "123456"}, "note '123456' is not a text of at most 5 characters"),
        ({"parameters": []}, r"parameters \[\] is not a table"),
    ],
)
def test_what_a_task_may_not_say_is_named(task, message):
    with pytest.raises(ValueError, match=message):
        checked(task, KEYS)


@pytest.mark.parametrize(
    ("action", "move"),
    [
        ("[left]", "left"),
        ("  LEFT ", "left"),
        ("I think [up] is bad, so [ Left ]", "left"),
        ("[0   1]", "0 1"),
        ("[[left]]", "left"),
        ("[left", "[left"),
        ("", ""),
        ("[]", ""),
        ("[old]" + "x" * 5_000, "x" * move_text.MAX_ACTION_CHARACTERS),
    ],
)
def test_the_move_that_a_text_says(action, move):
    assert move_text.move(action) == move


def test_moves_by_name():
    places = move_text.moves_by_name(["Left", "right", "LEFT"])
    assert move_text.chosen_move("[left]", places) == 0 and move_text.chosen_move("right", places) == 1
    assert move_text.chosen_move("[up]", places) is None


def test_long_texts_keep_both_ends():
    assert move_text.shortened("abc", 3) == "abc"
    short = move_text.shortened("a" * 500 + "b" * 500, 10)
    assert short.startswith("aaaaa\n") and short.endswith("\nbbbbb") and "990 characters" in short
