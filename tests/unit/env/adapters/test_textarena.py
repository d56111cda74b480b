"""TextArena's games: chance of their own, opponents, what is new in an observation, bad moves and tasks."""

import random
import threading
from typing import Any

import pytest

from earl.env.adapters import episode_random
from earl.env.adapters import textarena as adapter
from earl.env.adapters import textarena_moves as moves
from earl.env.adapters.textarena_games import GAMES, LEFT_OUT
from tests.support.episodes import MALFORMED, played

CLASSES: dict[str, Any] = {cls.name.removeprefix("textarena/"): cls for cls in adapter.environments()}
LISTED = {"legal_actions": True}
GUESS, NOUGHTS = CLASSES["GuessTheNumber-v0"], CLASSES["TicTacToe-v0"]


def test_what_the_agent_sees():
    game = NOUGHTS()
    first = game.reset(3, {"player": 1} | LISTED)
    assert first.text.startswith("You are Player 1 in Tic Tac Toe.")
    assert first.text.count("Available Moves") == 1 and len(first.legal_actions) == 8
    second = game.step(first.legal_actions[0]).observation
    assert "You are Player" not in second.text  # what is new, not all again
    assert second.text.count("Available Moves") == 1 and "Player 0 placed their symbol" in second.text


@pytest.mark.parametrize(
    "id",
    [
        "TicTacToe-v0",
        "GuessTheNumber-v0",
        "KuhnPoker-v0",
        "LiarsDice-v0",
        "Snake-v0",
        "FrozenLake-v0",
        "2048-v0",
    ],
)
def test_episodes_repeat_from_their_seed(id):
    task = LISTED | {"max_turns": 12}
    result, seen = played(CLASSES[id], 4, task)
    random.seed(99)  # the process's own chance has no say
    assert (result, seen) == played(CLASSES[id], 4, task)
    assert seen != played(CLASSES[id], 5, task)[1]
    assert result.truncated is not result.done
    low, high = CLASSES[id].reward_range
    assert low <= result.reward <= high


def test_the_processs_own_chance_is_left_alone():
    random.seed(7)
    expected = random.Random(7).random()
    played(NOUGHTS, 3, LISTED)
    assert random.random() == expected


def test_episodes_in_threads_do_not_mix():
    """Every turn of each of several episodes waits for the others: they are as if they were alone."""
    ids = ["Snake-v0", "LiarsDice-v0", "TicTacToe-v0", "PigDice-v0"]
    task = LISTED | {"max_turns": 6}
    alone = [played(CLASSES[id], 11, task) for id in ids]
    together: dict[str, object] = {}
    turn = threading.Barrier(len(ids))

    def play(id):
        choose = random.Random(11).choice

        def one(observation):
            try:
                turn.wait(timeout=20)
            except threading.BrokenBarrierError:
                pass  # a shorter episode is over: the rest no longer meet
            return choose(observation.legal_actions)

        together[id] = played(CLASSES[id], 11, task, one)
        turn.abort()

    threads = [threading.Thread(target=play, args=(id,)) for id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [together[id] for id in ids] == alone


def test_chance_of_its_own():
    stand_in, generator = episode_random._Random(), random.Random(1)
    with pytest.raises(RuntimeError, match="outside of an episode"):
        stand_in.random()
    with episode_random.chance(generator):
        drawn = [stand_in.random(), stand_in.Random().random(), stand_in.Random(5).random()]
        arrays = (
            episode_random._Numpy().random.default_rng().random(),
            episode_random._Numpy().random.randint(9),
        )
    generator = random.Random(1)
    with episode_random.chance(generator):
        assert drawn == [stand_in.random(), stand_in.Random().random(), random.Random(5).random()]
        assert arrays == (
            episode_random._Numpy().random.default_rng().random(),
            episode_random._Numpy().random.randint(9),
        )


def test_a_trial_changes_nothing():
    game = CLASSES["PigDice-v0"]()
    game.reset(3, {})
    state = game._chance.getstate()
    before = str(game._playing.state.game_state)
    assert moves.takes(game._playing, "[roll]", game._chance)
    assert not moves.takes(game._playing, "[jump]", game._chance)
    assert (game._chance.getstate(), str(game._playing.state.game_state)) == (state, before)


def test_a_second_illegal_move_loses_and_retries_may_be_set():
    game = NOUGHTS()
    game.reset(3, {})
    first = game.step("[9]")
    assert not first.done and "invalid move" in first.observation.text
    result = game.step("[9]")
    assert result.done and result.reward == -1
    assert result.metrics == {"win": 0.0, "draw": 0.0, "loss": 1.0, "illegal": 1.0, "turns": 2.0}
    strict = NOUGHTS()
    strict.reset(3, {"retries": 0})
    assert strict.step("nonsense").metrics["illegal"] == 1.0


@pytest.mark.parametrize(
    ("id", "turns"),
    [
        ("Poker-v0", 2),
        ("SantoriniBaseFixed-v0", 11),
        ("SettlersOfCatan-v0", 2),
        ("PublicGoodsGame-v0", 6),  # three turns in which anything may be said, then three refusals
        ("MarketEntryGame-v0", 6),
    ],
)
def test_nonsense_loses_where_textarena_lets_the_game_continue(id, turns):
    game = CLASSES[id]()
    game.reset(2, {})
    for _ in range(turns):
        result = game.step("hello there")
        if result.done or result.truncated:
            break
    assert (result.done, result.reward) == (True, -1.0)
    assert result.metrics == {"win": 0.0, "draw": 0.0, "loss": 1.0, "illegal": 1.0, "turns": turns}
    assert "illegal moves in a row lose the game" in result.observation.text


def test_a_legal_move_forgives_the_illegal_ones_before_it():
    game = CLASSES["Poker-v0"]()
    game.reset(2, {"retries": 1})
    for action in ("hello there", "[call]", "hello there"):
        result = game.step(action)
        assert not result.done, action
    assert game.step("hello there").done


def test_texts_without_brackets_are_put_into_them():
    game = NOUGHTS()
    game.reset(3, {})
    assert "invalid" not in game.step("4").observation.text


@pytest.mark.parametrize("id", ["TicTacToe-v0", "GuessTheNumber-v0", "KuhnPoker-v0", "SimpleNegotiation-v0"])
@pytest.mark.parametrize("action", MALFORMED)
def test_no_text_raises(id, action):
    game = CLASSES[id]()
    game.reset(2, {"max_turns": 3})
    for _ in range(3):
        result = game.step(action)
        if result.done or result.truncated:
            return
    raise AssertionError("three turns were not the last")


def test_every_seat_is_played():
    for player in range(3):
        result, _ = played(CLASSES["LiarsDice-v0"], 5, LISTED | {"players": 3, "player": player})
        assert result.done and result.metrics["win"] + result.metrics["draw"] + result.metrics["loss"] == 1


def test_long_episodes_are_truncated():
    result, seen = played(CLASSES["PigDice-v0"], 5, {"max_turns": 4}, lambda observation: "[hold]")
    assert result.truncated and not result.done and result.metrics["turns"] == 4 == len(seen) - 1
    assert result.metrics["loss"] == 0


@pytest.mark.parametrize(
    ("id", "task", "message"),
    [
        ("TicTacToe-v0", {"oponent": "random"}, "unknown task key 'oponent'; known are player, players"),
        ("TicTacToe-v0", {"players": 3}, "players 3 is not a whole number between 2 and 2"),
        ("LiarsDice-v0", {"player": 2}, "player 2 is not one of 2 players, 0 to 1"),
        ("GuessTheNumber-v0", {"max_turns": 0}, "max_turns 0"),
        ("Wordle-v0", {}, "needs word lists that are not installed: .*; download them once: python -m nltk"),
    ],
)
def test_bad_tasks_and_what_is_missing_are_named(id, task, message, monkeypatch):
    monkeypatch.setattr(moves.nltk.data, "path", [])
    with pytest.raises(ValueError, match=message):
        CLASSES[id]().reset(0, task)


def test_games_that_this_python_cannot_read(monkeypatch):
    monkeypatch.setattr(moves.sys, "version_info", (3, 11, 7))
    with pytest.raises(ValueError, match=r"textarena's Chess-v0 needs Python 3\.12"):
        CLASSES["Chess-v0"]().reset(0, {})


def test_every_game_of_the_registry_is_known():
    registered = {str(spec.entry_point).split(".")[2] for spec in moves.ENV_REGISTRY.values()}
    assert registered <= set(GAMES) | set(LEFT_OUT) and not set(GAMES) & set(LEFT_OUT)
    assert len(CLASSES) == len(moves.ids()) > 200


@pytest.mark.slow
def test_rooms_that_are_made_at_once_are_those_made_alone():
    """Sokoban's search for a room works in globals of its module."""
    alone = {seed: CLASSES["Sokoban-v0"]().reset(seed, {}).text for seed in range(4)}
    found: dict[int, str] = {}

    def begin(seed: int) -> None:
        found[seed] = CLASSES["Sokoban-v0"]().reset(seed, {}).text

    threads = [threading.Thread(target=begin, args=(seed,)) for seed in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == alone
