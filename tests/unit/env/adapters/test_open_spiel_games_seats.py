"""Both seats of OpenSpiel's games of two players in turn."""

from typing import Any

import pytest

from earl.env.adapters import open_spiel_games as adapter
from tests.support.episodes import at_random
from tests.support.seat_histories import begun, played, reconstructed

GAMES: dict[str, Any] = {cls.name.removeprefix("open_spiel/"): cls for cls in adapter.environments()}
# With chance, with hidden cards, with turns that do not alternate, paid during play, for more players too.
KINDS = [
    "breakthrough",
    "backgammon",
    "kuhn_poker",
    "leduc_poker",
    "dots_and_boxes",
    "negotiation",
    "mancala",
]


def test_which_games_have_two_seats():
    assert {name: GAMES[name].seats for name in ("chess", "kuhn_poker", "liars_dice", "go", "hex")} == {
        "chess": 2, "kuhn_poker": 2, "liars_dice": 2, "go": 2, "hex": 2,
    }  # fmt: skip
    assert {GAMES[name].seats for name in ("2048", "goofspiel", "hearts", "matching_pennies_3p")} == {1}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_two_seats_histories_reconstruct_the_game(name, seed):
    task = {"max_turns": 30}
    histories, last = played(GAMES[name], seed, task, at_random(seed))
    for player, history in enumerate(histories):
        assert history.metrics["turns"] == len(history.turns)
        assert all(f"You are player {player}." in text for text, _ in history.turns)
        assert not history.turns or history.turns[0][0].startswith("A game of ")
        outcomes = [history.metrics[kind] for kind in ("win", "draw", "loss")]
        assert sum(outcomes) == float(last.done) and not history.metrics["illegal"]
    assert reconstructed(GAMES[name], seed, task, histories) == last


def test_hidden_cards_stay_hidden_from_the_other_seat():
    """In Kuhn poker the second player's first observation does not tell the first one's card."""
    texts = set()
    for seed in range(40):
        game, shown = begun(GAMES["kuhn_poker"], seed, {})
        assert shown.seat == 0
        second = game.step("[Pass]").observation
        assert second.seat == 1
        texts.add(second.text)
    assert len(texts) == 3  # one for each card of its own


@pytest.mark.parametrize("mover", [0, 1])
def test_an_illegal_move_costs_its_seat_and_pays_the_other_nothing(mover):
    game, shown = begun(GAMES["breakthrough"], 1, {})
    for _ in range(mover):
        shown = game.step(shown.legal_actions[0]).observation
    last = game.step("pizza")
    assert last.done and last.observation.seat == mover == shown.seat
    assert (last.rewards[mover], last.rewards[1 - mover]) == (-1, 0)
    kinds = ("win", "draw", "loss", "illegal")
    assert [last.seat_metrics[mover][kind] for kind in kinds] == [0, 0, 1, 1]
    assert [last.seat_metrics[1 - mover][kind] for kind in kinds] == [0, 0, 0, 0]


def test_a_client_of_both_seats_plays_all_players():
    game = GAMES["kuhn_poker"]()
    game.seats_played = 2
    with pytest.raises(ValueError, match="players 3: a client that plays 2 seats plays all of them"):
        game.reset(0, {"players": 3})
