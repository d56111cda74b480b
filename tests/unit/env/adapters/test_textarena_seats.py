"""Both seats of TextArena's games of two."""

from typing import Any

import pytest

from earl.env.adapters import textarena as adapter
from tests.support.episodes import at_random, seen
from tests.support.seat_histories import begun, played, reconstructed

GAMES: dict[str, Any] = {cls.name.removeprefix("textarena/"): cls for cls in adapter.environments()}
# A board, hidden cards, chance, moves at once, free text, turns that do not alternate.
KINDS = [
    "TicTacToe-v0",
    "KuhnPoker-v0",
    "PigDice-v0",
    "IteratedPrisonersDilemma-v0",
    "Nim-v0",
    "MemoryGame-v0",
]


def test_which_games_have_two_seats():
    assert {GAMES[id].seats for id in (*KINDS, "LiarsDice-v0", "Poker-v0")} == {2}
    assert {GAMES[id].seats for id in ("Blackjack-v0", "Codenames-v0", "ThreePlayerIPD-v0")} == {1}


@pytest.mark.parametrize("id", KINDS)
def test_two_seats_histories_reconstruct_the_game(id):
    task = {"legal_actions": True, "max_turns": 6}
    histories, last = played(GAMES[id], 5, task, at_random(5))
    assert all(history.turns for history in histories)
    for history in histories:
        assert history.metrics["turns"] == len(history.turns)
        assert sum(history.metrics[kind] for kind in ("win", "draw", "loss")) in (0, 1)
    assert reconstructed(GAMES[id], 5, task, histories) == last


def test_each_seat_reads_the_rules_and_then_what_the_other_did():
    game, shown = begun(GAMES["TicTacToe-v0"], 0, {})
    assert shown.seat == 0 and "You are Player 0" in shown.text
    second = seen(game.step("[4]"))
    assert second.seat == 1 and "You are Player 1" in second.text and "[4]" in second.text
    third = seen(game.step("[0]"))
    assert third.seat == 0 and "You are Player" not in third.text and "Player 1: [0]" in third.text


def test_a_win():
    game, _ = begun(GAMES["TicTacToe-v0"], 0, {})
    for action in ("[0]", "[3]", "[1]", "[4]"):
        assert game.step(action).rewards == (0, 0)
    last = game.step("[2]")
    assert (last.done, list(last.rewards), seen(last).seat) == (True, [1, -1], 0)
    assert [figures["win"] for figures in last.seat_metrics] == [1, 0]


@pytest.mark.parametrize("id", ["TicTacToe-v0", "Poker-v0"])  # ended by TextArena, and here
@pytest.mark.parametrize("mover", [0, 1])
def test_illegal_moves_cost_their_seat_and_pay_the_other_nothing(id, mover):
    game, shown = begun(GAMES[id], 0, {"legal_actions": True})
    while shown.seat != mover:
        shown = seen(game.step(shown.legal_actions[0]))
    first = game.step("[nonsense]")
    assert not first.done and seen(first).seat == mover
    last = game.step("[nonsense]")
    assert last.done and seen(last).seat == mover
    assert (last.rewards[mover], last.rewards[1 - mover]) == (game.game.rewards[0], 0)
    kinds = ("win", "draw", "loss", "illegal")
    assert [last.seat_metrics[mover][kind] for kind in kinds] == [0, 0, 1, 1]
    assert [last.seat_metrics[1 - mover][kind] for kind in kinds] == [0, 0, 0, 0]


def test_a_client_of_both_seats_plays_all_players():
    game = GAMES["Poker-v0"]()
    game.seats_played = 2
    with pytest.raises(ValueError, match="players 3: a client that plays 2 seats plays all of them"):
        game.reset(0, {"players": 3})
