"""Both seats of tic-tac-toe and Connect Four, and the scripted player of one ply."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.env.adapters import alpha_beta
from earl.env.adapters.open_spiel import ConnectFour, TicTacToe, environments
from tests.support.episodes import seen
from tests.support.seat_histories import begun, played, reconstructed
from tests.unit.env.adapters.test_open_spiel import ROWS, play, random_chooser

GAMES = environments()


def acts(*actions):
    left = list(actions)
    return lambda observation: left.pop(0)


@pytest.mark.parametrize("game", GAMES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=20)
def test_two_seats_histories_reconstruct_the_game(game, seed):
    task = {"draw_reward": 0.5}
    histories, last = played(game, seed, task, random_chooser(seed))
    assert [len(history.turns) for history in histories] == [h.metrics["moves"] for h in histories]
    assert 0 <= len(histories[0].turns) - len(histories[1].turns) <= 1
    outcomes = [(h.metrics["win"], h.metrics["draw"], h.metrics["loss"]) for h in histories]
    assert outcomes in ([(1, 0, 0), (0, 0, 1)], [(0, 0, 1), (1, 0, 0)], [(0, 1, 0)] * 2)
    expected = [0.5 if drawn else won - lost for won, drawn, lost in outcomes]
    assert [history.return_ for history in histories] == expected
    assert reconstructed(game, seed, task, histories) == last


def test_who_moves_and_what_both_see():
    environment, shown = begun(TicTacToe, 0, {"opponent": "minimax", "player": 1})
    assert (shown.seat, shown.text) == (0, "0 1 2 3 4 5 6 7 8")
    second = environment.step("[4]")
    assert (second.observation.seat, second.observation.text) == (1, "0 1 2 3 x4 5 6 7 8")
    assert (second.reward, second.rewards, len(second.observation.legal_actions)) == (0, (0.0, 0.0), 8)
    third = environment.step("[0]").observation
    assert (third.seat, third.text) == (0, "o0 1 2 3 x4 5 6 7 8")


@given(seed=st.integers(0, 2**32))
@settings(max_examples=20)
def test_changes_name_every_stone_once_to_each_seat(seed):
    task = {"view": "changes"}
    histories, last = played(ConnectFour, seed, task, random_chooser(seed))
    plies = [history.turns for history in histories]
    columns = [plies[ply % 2][ply // 2][1][1] for ply in range(sum(map(len, plies)))]
    stones = [f"{'xo'[ply % 2]}{column}{columns[:ply].count(column)}" for ply, column in enumerate(columns)]
    for seat, turns in enumerate(plies):
        words = " ".join(text for text, _ in turns).split()
        assert words == ["xo"[seat], *stones[: 2 * len(turns) - 2 + seat]]
    mover = seen(last).seat
    assert seen(last).text.split() == stones[2 * len(plies[mover]) - 2 + mover :]


@given(seed=st.integers(0, 2**32), opening=st.integers(0, 12))
@settings(max_examples=20)
def test_a_relative_view_names_each_stone_mine_or_theirs(seed, opening):
    histories, _ = played(ConnectFour, seed, {"view": "relative", "opening": opening}, random_chooser(seed))
    plain, _ = played(ConnectFour, seed, {"view": "changes", "opening": opening}, random_chooser(seed))
    for seat, marks in enumerate(("mt", "tm")):
        for (shown, action), (named, same) in zip(histories[seat].turns, plain[seat].turns, strict=True):
            words = [marks["xo".index(word[0])] + word[1:] if word[1:] else word for word in named.split()]
            assert shown.split() == words and action == same


@pytest.mark.parametrize("game", GAMES)
@given(seed=st.integers(0, 2**32), opening=st.integers(1, 40))
@settings(max_examples=20)
def test_two_seats_after_an_opening(game, seed, opening):
    task = {"opening": opening}
    histories, last = played(game, seed, task, random_chooser(seed))
    assert sum(len(history.turns) for history in histories) >= 1
    assert reconstructed(game, seed, task, histories) == last


def test_changes_show_an_opening_first():
    _, shown = begun(ConnectFour, 3, {"view": "changes", "opening": 12})
    mark, *stones = shown.text.split()
    assert mark == "xo"[shown.seat] and len(stones) % 2 == shown.seat and len(stones) <= 12
    assert len(set(stones)) == len(stones)


def test_changes_against_a_scripted_player():
    four = ConnectFour()
    assert four.reset(1, {"view": "changes"}).text == "x"
    own, other = seen(four.step("[3]")).text.split()
    assert own == "x30" and other[0] == "o"
    assert ConnectFour().reset(1, {"view": "changes", "player": 1}).text.startswith("o x")
    with pytest.raises(ValueError, match="view"):
        ConnectFour().reset(1, {"view": "stones"})
    with pytest.raises(ValueError, match="view"):
        TicTacToe().reset(1, {"view": "changes"})


def test_a_win_of_each_seat():
    (first, second), last = played(TicTacToe, 0, {}, acts("[0]", "[3]", "[1]", "[4]", "[2]"))
    assert (first.return_, second.return_, seen(last).seat) == (1, -1, 0)
    (first, second), last = played(TicTacToe, 0, {}, acts("[0]", "[3]", "[1]", "[4]", "[8]", "[5]"))
    assert (first.return_, second.return_, seen(last).seat) == (-1, 1, 1)
    assert second.metrics == {"win": 1, "draw": 0, "loss": 0, "illegal": 0, "moves": 3}


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("mover", [0, 1])
@pytest.mark.parametrize("action", ["", "[9]", "centre"])
def test_an_illegal_move_costs_its_seat_and_pays_the_other_nothing(game, mover, action):
    actions = ["[3]"] * mover + [action]
    histories, last = played(game, 3, {"illegal_reward": -0.5, "draw_reward": 1}, acts(*actions))
    other = histories[1 - mover]
    assert (histories[mover].return_, other.return_) == (-0.5, 0)
    assert histories[mover].metrics | {"moves": 0} == {
        "win": 0,
        "draw": 0,
        "loss": 1,
        "illegal": 1,
        "moves": 0,
    }
    assert other.metrics | {"moves": 0} == {"win": 0, "draw": 0, "loss": 0, "illegal": 0, "moves": 0}
    assert last.done and seen(last).seat == mover


# --- a player of one ply -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("board", "mark", "best"),
    [
        ("xx.oo....", "x", {2}),  # wins rather than blocks
        ("xx.oo....", "o", {5}),
        ("xx..o....", "o", {2}),  # blocks
        ("x...o...x", "o", {1, 2, 3, 5, 6, 7}),  # sees no further
    ],
)
def test_one_ply_of_tic_tac_toe(board, mark, best):
    assert {alpha_beta.one_ply_tic_tac_toe(board, mark, random.Random(seed)) for seed in range(60)} == best


@pytest.mark.parametrize(
    ("rows", "mark", "best"),
    [
        ([*ROWS, "x......", "x......", "x.o.oo."], "o", {3}),  # wins at once rather than blocking
        ([*ROWS, "x......", "x......", "x.o.o.."], "o", {0}),  # blocks
        ([*ROWS, ".......", ".......", "..xx..."], "o", set(range(7))),  # sees no open three
        (["x......", "o......", "x......", "o......", "x......", "o......"], "x", set(range(1, 7))),
    ],
)
def test_one_ply_of_connect_four(rows, mark, best):
    assert {alpha_beta.one_ply_connect_four(rows, mark, random.Random(seed)) for seed in range(60)} == best


@pytest.mark.parametrize("game", GAMES)
def test_a_scripted_player_of_one_ply_wins_more_than_a_random_one_and_less_than_minimax(game):
    def lost(opponent):
        results = [
            play(game, seed, {"opponent": opponent, "player": seed % 2}, random_chooser(seed))
            for seed in range(60)
        ]
        return sum(result.metrics["loss"] for result, _ in results)

    assert lost("random") < lost("one_ply") <= lost("minimax")


def test_one_ply_repeats_from_its_seed():
    games = [play(ConnectFour, 5, {"opponent": "one_ply"}, random_chooser(5)) for _ in range(2)]
    assert games[0] == games[1]
