"""The OpenSpiel games: what the agent sees, who may move where, how games end, and the opponents."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.env.adapters import alpha_beta
from earl.env.adapters.open_spiel import ConnectFour, TicTacToe, environments
from earl.env.base import StepResult

GAMES = environments()


def play(game, seed, task, choose) -> tuple[StepResult, list[str]]:
    environment = game()
    observation = environment.reset(seed, task)
    seen = [observation.text]
    while True:
        result = environment.step(choose(observation))
        observation = result.observation
        seen.append(observation.text)
        if result.done:
            return result, seen


def random_chooser(seed):
    rng = random.Random(seed)
    return lambda observation: rng.choice(observation.legal_actions)


def test_what_the_agent_sees():
    start = TicTacToe().reset(0, {})
    assert start.text == "0 1 2 3 4 5 6 7 8"
    assert list(start.legal_actions) == [f"[{cell}]" for cell in range(9)]
    second = TicTacToe().reset(0, {"player": 1})
    taken = [word for word in second.text.split() if not word.isdigit()]
    assert len(taken) == 1 and taken[0][0] == "x" and len(second.legal_actions) == 8
    four = ConnectFour().reset(0, {})
    rows = four.text.split(" / ")
    assert len(rows) == 6 and all(row.split() == ["."] * 7 for row in rows)
    assert list(four.legal_actions) == [f"[{column}]" for column in range(7)]


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("action", ["", "[9]", "4", "[4", "[[4]]", "[4] [5]", "[12]", "[-1]", "centre"])
def test_malformed_and_illegal_actions_lose(game, action):
    environment = game()
    environment.reset(3, {"illegal_reward": -0.5})
    result = environment.step(action)
    assert result.done and result.reward == -0.5
    assert result.metrics == {"win": 0, "draw": 0, "loss": 1, "illegal": 1, "moves": 1}


@pytest.mark.parametrize("game", GAMES)
def test_the_digit_alone_is_an_action_where_the_task_says_so(game):
    start = game().reset(0, {"action": "d"})
    assert list(start.legal_actions) == [action[1] for action in game().reset(0, {}).legal_actions]
    for action in ("4", " 4\n"):
        environment = game()
        environment.reset(3, {"action": "d"})
        assert not environment.step(action).done
    for action in ("[4]", "44", "", "-4", "4 5", "four"):
        environment = game()
        environment.reset(3, {"action": "d"})
        assert environment.step(action).metrics["illegal"] == 1


def test_a_taken_cell_is_illegal_and_blanks_are_not():
    environment = TicTacToe()
    environment.reset(3, {})
    assert not environment.step(" [ 4 ] ").done
    assert environment.step("[4]").metrics["illegal"] == 1


@pytest.mark.parametrize("game", GAMES)
@given(seed=st.integers(0, 2**63), player=st.integers(0, 1))
@settings(max_examples=30)
def test_games_repeat_from_their_seed_and_add_up(game, seed, player):
    task = {"player": player, "draw_reward": 0.25}
    result, seen = play(game, seed, task, random_chooser(seed))
    again, seen_again = play(game, seed, task, random_chooser(seed))
    assert (result, seen) == (again, seen_again)
    metrics = result.metrics
    assert metrics["win"] + metrics["draw"] + metrics["loss"] == 1 and metrics["illegal"] == 0
    assert result.reward == metrics["win"] - metrics["loss"] + 0.25 * metrics["draw"]
    assert metrics["moves"] == len(seen) - 1


@pytest.mark.parametrize("game", GAMES)
@given(seed=st.integers(0, 2**63), player=st.integers(0, 1), opening=st.integers(1, 40))
@settings(max_examples=60)
def test_an_opening_leaves_the_agent_a_turn_and_repeats_from_the_seed(game, seed, player, opening):
    task = {"player": player, "opening": opening, "opponent": "one_ply"}
    environment, again = game(), game()
    start = environment.reset(seed, task)
    assert start == again.reset(seed, task) and start.legal_actions
    state = environment._state
    assert not state.is_terminal() and state.current_player() == player
    made = len(state.history())
    assert player <= made <= max(opening, player) and made % 2 == player
    result, _ = play(game, seed, task, random_chooser(seed))
    assert result.done and result.metrics["illegal"] == 0


def test_openings_differ_by_seed_and_without_one_the_board_is_empty():
    boards = [ConnectFour().reset(seed, {"opening": 20}).text for seed in range(40)]
    lengths = [sum(cell in "xo" for cell in board) for board in boards]
    assert len(set(boards)) > 30 and min(lengths) <= 4 and max(lengths) >= 16
    assert ConnectFour().reset(7, {}).text.count(".") == 42


def test_minimax_never_loses_tic_tac_toe():
    for seed in range(60):
        result, _ = play(TicTacToe, seed, {"opponent": "minimax", "player": seed % 2}, random_chooser(seed))
        assert result.metrics["win"] == 0


def test_perfect_play_draws():
    assert alpha_beta.tic_tac_toe_value("." * 9, "x") == 0
    rng = random.Random(0)

    def perfect(observation):
        board = "".join("." if cell.isdigit() else cell[0] for cell in observation.text.split())
        return f"[{alpha_beta.best_tic_tac_toe(board, 'x', rng)}]"

    for seed in range(10):
        result, _ = play(TicTacToe, seed, {"opponent": "minimax"}, perfect)
        assert result.metrics["draw"] == 1


ROWS = ["." * 7] * 3


@pytest.mark.parametrize(
    ("rows", "mark", "best"),
    [
        ([*ROWS, "x......", "x......", "x.o.oo."], "o", {3}),  # wins at once rather than blocking
        ([*ROWS, "x......", "x......", "x.o.o.."], "o", {0}),  # must block
        ([*ROWS, ".......", ".......", "..xx..."], "x", {1, 4}),  # makes an open three
    ],
)
def test_connect_four_sees_wins_and_threats(rows, mark, best):
    choices = {alpha_beta.best_connect_four(rows, mark, 4, random.Random(seed)) for seed in range(8)}
    assert choices <= best


@given(st.lists(st.integers(0, 6), max_size=42))
def test_four_in_a_row_agrees_with_open_spiel(columns):
    environment = ConnectFour()
    environment.reset(0, {})
    state = environment._state
    for column in columns:
        if state.is_terminal() or column not in state.legal_actions():
            break
        state.apply_action(column)
    rows = str(state).split()
    won = [alpha_beta.has_four(alpha_beta.bit_sets(rows, mark)[0]) for mark in "xo"]
    assert won == [value > 0 for value in state.returns()]


@pytest.mark.parametrize(
    "task",
    [
        {"oponent": "random"},
        {"opponent": "god"},
        {"player": 2},
        {"draw_reward": 5},
        {"illegal_reward": "a"},
        {"action": "d]"},
    ],
)
def test_bad_tasks_name_the_key(task):
    with pytest.raises(ValueError, match=next(iter(task))):
        TicTacToe().reset(0, task)
