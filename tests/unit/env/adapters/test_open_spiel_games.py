"""OpenSpiel's games in general: in turn or at once, chance, hidden cards, many players, bad moves, tasks."""

from typing import Any

import pytest

from earl.env.adapters import open_spiel_games as adapter
from tests.support.episodes import MALFORMED, played

GAMES: dict[str, Any] = {cls.name.removeprefix("open_spiel/"): cls for cls in adapter.environments()}


def test_what_the_agent_sees():
    first = GAMES["kuhn_poker"]().reset(3, {})
    assert first.text.startswith("A game of Kuhn Poker.\n")
    assert first.text.endswith("You are player 0. Your moves: [Pass] [Bet]")
    assert first.legal_actions == ["[Pass]", "[Bet]"]
    go = GAMES["go"]().reset(3, {"parameters": {"board_size": 9}})
    assert len(go.legal_actions) == 82 and " and 22 more" in go.text


# Of every kind: alone, in turn, at once; with chance, of its own or the game's; two to six players.
KINDS = ["2048", "breakthrough", "backgammon", "goofspiel", "matching_pennies_3p", "hearts", "negotiation"]


@pytest.mark.parametrize("name", KINDS)
def test_games_repeat_from_their_seed(name):
    task = {"max_turns": 30}
    result, seen = played(GAMES[name], 5, task)
    assert (result, seen) == played(GAMES[name], 5, task)
    assert seen != played(GAMES[name], 6, task)[1]
    assert result.truncated is not result.done and -1 <= result.reward <= 1
    counted = result.metrics
    assert counted["win"] + counted["draw"] + counted["loss"] == float(result.done)
    assert counted["turns"] == len(seen) - 1 and counted["illegal"] == 0


def test_every_seat_is_played():
    for player in range(3):
        result, seen = played(GAMES["kuhn_poker"], 9, {"players": 3, "player": player})
        assert f"You are player {player}." in seen[0].text and result.done


def test_hidden_cards_stay_hidden():
    """The cards of another player change nothing of what the agent is shown at first."""
    texts = {GAMES["leduc_poker"]().reset(seed, {}).text for seed in range(40)}
    assert len(texts) == 6  # one for each card of the agent's own


@pytest.mark.parametrize("name", ["breakthrough", "goofspiel", "2048"])
@pytest.mark.parametrize("action", MALFORMED)
def test_what_is_no_move_ends_the_game_with_the_lowest_reward(name, action):
    game = GAMES[name]()
    legal = game.reset(1, {}).legal_actions
    assert action not in legal
    result = game.step(action)
    assert result.done and result.metrics["illegal"] == 1 and result.metrics["loss"] == 1
    assert result.reward == {"2048": 0.0}.get(name, -1.0)


def test_rewards_are_of_the_scale_of_the_game():
    results = [played(GAMES["blotto"], seed)[0] for seed in range(12)]
    assert {result.reward for result in results} == {result.metrics["return"] for result in results}
    bids = [played(GAMES["first_sealed_auction"], seed)[0] for seed in range(12)]
    assert any(result.reward == pytest.approx(result.metrics["return"] / 10) != 0 for result in bids)


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("go", {"size": 9}, "unknown task key 'size'"),
        ("go", {"parameters": {"size": 9}}, "unknown parameter 'size' of go; known are board_size"),
        ("go", {"parameters": {"board_size": "9"}}, "parameter board_size '9' is not like the game's own"),
        ("go", {"parameters": {"board_size": 101}}, "parameter board_size 101 is not between 0 and 100"),
        ("bargaining", {"parameters": {"instances_file": "/etc/passwd"}}, "unknown parameter"),
        ("kuhn_poker", {"player": 2}, "player 2 is not one of 2 players, 0 to 1"),
        ("breakthrough", {"players": 3}, "players 3 is not a whole number between 2 and 2"),
        ("hex", {"parameters": {"num_rows": -3}}, "parameter num_rows -3 is not between"),
        ("go", {"parameters": {"board_size": 0}}, "not go's"),
    ],
)
def test_bad_tasks_are_named(name, task, message):
    with pytest.raises(ValueError, match=message):
        GAMES[name]().reset(0, task)


def test_what_is_not_served_is_named():
    served = {cls.name.removeprefix("open_spiel/") for cls in adapter.environments()}
    every = set(adapter._types())
    assert len(every) == 126 and every - served == set(adapter.left_out()) | adapter._ELSEWHERE
