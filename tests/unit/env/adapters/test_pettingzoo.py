"""PettingZoo's games: what a seat sees, whose turn it is, what each earns, moves that are none."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.episodes import MALFORMED, at_random, played, seen, total
from tests.support.needs import lacking
from tests.support.seat_histories import begun, reconstructed
from tests.support.seat_histories import played as played_by_all

try:
    import pettingzoo

    from earl.env.adapters import pettingzoo as adapter
except ModuleNotFoundError as error:
    lacking(f"{error}: make setup", module=True)

GAMES: dict[str, Any] = {cls.name.removeprefix("pettingzoo/"): cls for cls in adapter.environments()}
TicTacToe, ConnectFour = GAMES["tictactoe_v3"], GAMES["connect_four_v3"]
# Rounds that pay as they are played; the second seat does not see the first one's choice.
Rounds = adapter.environment(
    lambda: pettingzoo.make("aec", "classic/rps-v2", max_cycles=4),
    name="test/rounds",
    actions=("rock", "paper", "scissors"),
    reward_range=(-4.0, 4.0),
)


def acts(*actions):
    left = list(actions)
    return lambda observation: left.pop(0)


def test_what_a_seat_sees():
    game, shown = begun(TicTacToe, 0, {})
    assert (shown.seat, shown.text) == (0, "You are x. . . . / . . . / . . .")
    assert list(shown.legal_actions) == [f"[{cell}]" for cell in range(9)]
    second = seen(game.step("[4]"))
    assert (second.seat, second.text) == (1, "You are o. . . . / . x . / . . .")
    assert "[4]" not in second.legal_actions
    four, shown = begun(ConnectFour, 0, {})
    below = seen(four.step("I take [3]")).text
    assert below.endswith("/ . . . x . . .") and below.count("/") == 5


def test_one_seat_against_random_play():
    for player in (0, 1):
        result, shown = played(TicTacToe, 5, {"player": player})
        assert (result, shown) == played(TicTacToe, 5, {"player": player})
        assert shown[0].text.startswith(f"You are {'xo'[player]}.") and shown[0].seat == 0
        assert result.rewards == () and result.reward == result.metrics["win"] - result.metrics["loss"]
        assert result.metrics["turns"] == len(shown) - 1
    assert shown != played(TicTacToe, 6, {"player": 1})[1]


@pytest.mark.parametrize("make", [TicTacToe, ConnectFour, Rounds], ids=lambda cls: cls.name)
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=10)
def test_two_seats_histories_reconstruct_the_game(make, seed):
    histories, last = played_by_all(make, seed, {}, at_random(seed))
    assert last.done is not last.truncated
    for history in histories:
        assert history.metrics["turns"] == len(history.turns) and not history.metrics["illegal"]
        assert sum(history.metrics[kind] for kind in ("win", "draw", "loss")) == float(last.done)
    assert reconstructed(make, seed, {}, histories) == last


def test_a_win_and_a_draw():
    (first, second), last = played_by_all(TicTacToe, 0, {}, acts("[0]", "[3]", "[1]", "[4]", "[2]"))
    assert (first.return_, second.return_, last.done, seen(last).seat) == (1, -1, True, 0)
    assert (first.metrics["win"], second.metrics["loss"]) == (1, 1)
    moves = ["[0]", "[1]", "[2]", "[4]", "[3]", "[5]", "[7]", "[6]", "[8]"]
    histories, _ = played_by_all(TicTacToe, 0, {}, acts(*moves))
    assert [(history.return_, history.metrics["draw"]) for history in histories] == [(0, 1), (0, 1)]


@pytest.mark.parametrize("mover", [0, 1])
@pytest.mark.parametrize("action", [*MALFORMED[:8], "[7]", "[4]"])
def test_an_illegal_move_costs_its_seat_and_pays_the_other_nothing(mover, action):
    game, shown = begun(ConnectFour, 0, {})
    for column in range(7 if mover else 6):  # until column 4 is full, on either seat's turn
        del column
        shown = seen(game.step("[4]")) if "[4]" in shown.legal_actions else seen(game.step("[0]"))
    assert shown.seat == mover and "[4]" not in shown.legal_actions
    last = game.step(action)
    assert last.done and seen(last).seat == mover
    assert (last.rewards[mover], last.rewards[1 - mover]) == (-1, 0)
    kinds = ("win", "draw", "loss", "illegal")
    assert [last.seat_metrics[mover][kind] for kind in kinds] == [0, 0, 1, 1]
    assert [last.seat_metrics[1 - mover][kind] for kind in kinds] == [0, 0, 0, 0]


def test_rounds_pay_each_seat_as_they_are_played_and_nonsense_loses_all():
    game, shown = begun(Rounds, 0, {})
    assert list(shown.legal_actions) == ["[rock]", "[paper]", "[scissors]"]
    assert game.step("[rock]").rewards == [0, 0]
    assert game.step("[paper]").rewards == [-1, 1]
    last = game.step("nonsense")
    assert last.rewards == (-3.0, 0.0)  # its return is then the lowest, -4
    alone, _ = played(Rounds, 3, {}, lambda observation: "nonsense")
    assert alone.reward == -4 and total([alone]) == -4


def test_the_second_seats_first_observation_tells_nothing_of_the_firsts_choice():
    texts = set()
    for action in ("[rock]", "[paper]", "[scissors]"):
        game, _ = begun(Rounds, 0, {})
        texts.add(seen(game.step(action)).text)
    assert len(texts) == 1


def test_long_games_are_truncated():
    game, _ = begun(ConnectFour, 0, {"max_turns": 2})
    results = [game.step(f"[{column}]") for column in (0, 1, 2)]
    assert [result.truncated for result in results] == [False, False, True]
    assert results[-1].metrics == {"win": 0, "draw": 0, "loss": 0, "illegal": 0, "turns": 2}


@pytest.mark.parametrize("task", [{"player": 2}, {"players": 2}, {"max_turns": 0}])
def test_bad_tasks_name_the_key(task):
    with pytest.raises(ValueError, match=next(iter(task))):
        TicTacToe().reset(0, task)


def test_the_seats_are_the_agents():
    assert TicTacToe.seats == ConnectFour.seats == Rounds.seats == 2
