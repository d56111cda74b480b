"""Every game of OpenSpiel (package open-spiel) that stands on its own, against players that move at random.

"open_spiel/NAME" for OpenSpiel's short names but those of open_spiel.py, which has its own form and better
opponents for them. One player or many, in turn or all at once, with chance, with hidden information: the
agent sees OpenSpiel's observation of its player, and the moves that it may make.

A game of two players in turn has two seats: a client may play both.

Task: {"player": 0, "players": the game's own number, "parameters": {}, "max_turns": 200}. Parameters are
the game's own, for example {"board_size": 9} of go; those that name files cannot be set. An action is a
move as it is listed, "[a1]"; the last brackets of a text count. Anything else, and a move that is not
legal, ends the episode with the lowest reward. After max_turns actions of a player that the client plays the
episode is truncated. The others' moves and all chance come from the seed. Where a client plays both seats,
`player` says nothing, and an illegal move pays the other seat 0, as neither a win nor a draw nor a loss: it
would else learn that what it did before has won.

Reward at the end: the player's return over the largest amount that the game can give or take, so within
-1 and 1 whatever the parameters (1 for a win of most games). Metrics: win (alone: the highest return that
there is; else the highest of all players), draw (all returns equal), loss, illegal, each 0 or 1; return as
OpenSpiel counts it, and turns. Each seat that the client plays has its own.
"""

from __future__ import annotations

import functools
import math
import random
from typing import Any, ClassVar

import pyspiel

from earl.env.adapters import move_text, seat_results
from earl.env.adapters.metrics import metrics
from earl.env.adapters.settings import Setting, TableSetting, Whole, checked
from earl.env.adapters.variants import variant
from earl.env.base import Environment, Observation, StepResult

MAX_TEXT_CHARACTERS = 12_000
# Moves that an observation lists in its text, and as legal actions.
LISTED_IN_TEXT = 60
LISTED_MOVES = 1_000
# Whole parameters up to this, or the game's own default if that is larger: boards stay in memory.
MAX_PARAMETER = 100
_MAX_OTHERS = 10_000
_SEEDS = ("rng_seed", "seed")
_ELSEWHERE = frozenset({"tic_tac_toe", "connect_four"})
_KINDS = pyspiel.GameType

# Games that no host serves, in addition to those that are made of another game or a file.
LEFT_OUT: dict[str, str] = {
    "crossword": "its moves are structures, of which there is no list",
    "mfg_crowd_modelling": "a mean field game: its moves need a distribution over states",
    "mfg_crowd_modelling_2d": "a mean field game: its moves need a distribution over states",
    "mfg_dynamic_routing": "a mean field game: its moves need a distribution over states",
    "mfg_garnet": "a mean field game: its moves need a distribution over states",
}


class OpenSpielGame(Environment):
    """One game; `game_name` is OpenSpiel's."""

    game_name: ClassVar[str]
    reward_range = (-1.0, 1.0)

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """Starts a game. Raises ValueError for a malformed task."""
        game = self._loaded(task, seed)
        self._rng = random.Random(f"open_spiel/{seed}")
        self._game = game
        self._least, self._scale = _bounds(game)
        # Actions of each player that the client plays, and whose turn it is.
        self._turns = dict.fromkeys(self._played, 0)
        self._mover = self._player
        if self._until_turn():
            raise RuntimeError(f"{game} was over before player {self._player} could move")
        return self._observation()

    def _loaded(self, task: dict[str, Any], seed: int) -> Any:
        kind = _types()[self.game_name]
        names = dict(kind.parameter_specification)
        fewest, most = kind.min_num_players, kind.max_num_players
        keys: dict[str, Setting] = {
            "player": Whole(0, 0, most - 1),
            "players": Whole(None, fewest, most),
            "parameters": TableSetting(),
            "max_turns": Whole(200, 1, 10_000),
        }
        settings = checked(task, keys)
        parameters = _parameters(self.game_name, settings["parameters"], names)
        players = settings["players"] if self.seats_played == 1 else settings["players"] or 2
        if players is not None and "players" in names:
            parameters["players"] = players
        seeded = kind.chance_mode == _KINDS.ChanceMode.SAMPLED_STOCHASTIC
        if seeded:
            parameters |= {key: seed & 0x3FFFFFFF for key in _SEEDS if key in names}
        try:
            given = tuple(sorted(parameters.items()))
            game = _load.__wrapped__(self.game_name, given) if seeded else _load(self.game_name, given)
            self._state = game.new_initial_state()
        except pyspiel.SpielError as error:
            raise ValueError(f"parameters {parameters!r} are not {self.game_name}'s: {error}") from error
        self._players = game.num_players()
        if players not in (None, self._players):
            text = f"players {players!r}: {self.game_name} is played by {self._players}"
            raise ValueError(text)
        if self.seats_played > 1 and self._players != self.seats_played:
            text = (
                f"players {self._players!r}: a client that plays {self.seats_played} seats plays all of them"
            )
            raise ValueError(text)
        if settings["player"] >= self._players:
            text = f"player {settings['player']!r} is not one of {self._players} players"
            raise ValueError(f"{text}, 0 to {self._players - 1}")
        self._player: int = settings["player"]
        self._played = (self._player,) if self.seats_played == 1 else tuple(range(self._players))
        self._max_turns: int = settings["max_turns"]
        return game

    def step(self, action: str) -> StepResult:
        """Plays the move of the player whose turn it is, then the others' until it is the client's turn."""
        mover = self._mover
        self._turns[mover] += 1
        place = move_text.chosen_move(action, self._places)
        if place is None:
            return self._ended("That is not a legal move.", mover, illegal=True)
        self._apply(self._legal[place])
        if self._until_turn():
            return self._ended(self._state_text(mover), mover)
        if self._turns[mover] >= self._max_turns:
            return self._truncated(mover)
        return seat_results.running(self._observation(), self.seats_played)

    # --- moves -------------------------------------------------------------------------------

    def _apply(self, agent_action: int) -> None:
        """Plays a move of the client; where all players move at once, the others' moves are random."""
        if not self._state.is_simultaneous_node():
            self._state.apply_action(agent_action)
            return
        mine, players = self._player, range(self._players)
        actions = [agent_action if player == mine else self._random(player) for player in players]
        self._state.apply_actions(actions)

    def _random(self, player: int) -> int:
        legal = self._state.legal_actions(player)
        return self._rng.choice(legal) if legal else 0

    def _until_turn(self) -> bool:
        """Plays the other players' moves. False: it is the client's turn; True: the game is over."""
        state = self._state
        for _ in range(_MAX_OTHERS):
            if state.is_terminal():
                return True
            if state.is_chance_node():
                outcomes, weights = zip(*state.chance_outcomes(), strict=True)
                state.apply_action(self._rng.choices(outcomes, weights)[0])
            elif state.is_simultaneous_node():
                if state.legal_actions(self._player):
                    return False
                self._apply(0)
            elif state.current_player() in self._played:
                self._mover = state.current_player()
                return False
            else:
                state.apply_action(self._random(state.current_player()))
        raise RuntimeError(f"the others made {_MAX_OTHERS} moves in a row in {self.game_name}")

    # --- what the agent sees -----------------------------------------------------------------

    def _observation(self) -> Observation:
        state = self._state
        self._legal: list[int] = state.legal_actions(self._mover)
        strings = [state.action_to_string(self._mover, action) for action in self._legal]
        names = [_unbracketed(text) or str(action) for text, action in zip(strings, self._legal, strict=True)]
        self._places = move_text.moves_by_name(names)
        if len(self._places) < len(names):
            names = [str(action) for action in self._legal]
            self._places = move_text.moves_by_name(names)
        listed = [f"[{name}]" for name in names]
        shown = " ".join(listed[:LISTED_IN_TEXT])
        more = f" and {len(listed) - LISTED_IN_TEXT} more" if len(listed) > LISTED_IN_TEXT else ""
        text = f"{self._state_text(self._mover)}\nYou are player {self._mover}. Your moves: {shown}{more}"
        if self._turns[self._mover] == 0:
            text = f"A game of {self._game.get_type().long_name}.\n{text}"
        return Observation(text, listed[:LISTED_MOVES], seat=self._mover if self.seats_played > 1 else 0)

    def _state_text(self, player: int) -> str:
        kind = self._game.get_type()
        if kind.provides_observation_string:
            text = self._state.observation_string(player)
        elif kind.provides_information_state_string:
            text = self._state.information_state_string(player)
        else:
            text = str(self._state)
        return move_text.shortened(text.strip(), MAX_TEXT_CHARACTERS)

    # --- how it ends -------------------------------------------------------------------------

    def _ended(self, text: str, mover: int, illegal: bool = False) -> StepResult:
        """The last result, after a step of `mover`, which was illegal or ended the game."""
        returns = self._state.returns()
        outcomes: list[seat_results.SeatOutcome] = []
        for player in self._played:
            reward = returns[player] / self._scale
            if illegal:
                reward = self._least / self._scale if player == mover else 0.0
            outcomes.append((reward, self._metrics(player, mover if illegal else None)))
        return seat_results.last(text, mover, outcomes)

    def _truncated(self, mover: int) -> StepResult:
        """The last result when turns have run out.

        It has the returns so far, in games that pay during play.
        """
        pays = self._game.get_type().reward_model == _KINDS.RewardModel.REWARDS
        undecided = {"win": 0.0, "draw": 0.0, "loss": 0.0}
        outcomes = [
            (
                self._state.returns()[player] / self._scale if pays else 0.0,
                self._metrics(player) | undecided,
            )
            for player in self._played
        ]
        return seat_results.last(self._state_text(mover), mover, outcomes, truncated=True)

    def _metrics(self, player: int, illegal_of: int | None = None) -> dict[str, float]:
        """A player's metrics; illegal_of: whose illegal move ended the game."""
        returns = self._state.returns()
        agent_return = returns[player]
        alone = self._players == 1
        drawn = not alone and max(returns) == min(returns)
        won = (
            agent_return >= self._game.max_utility() if alone else agent_return == max(returns) and not drawn
        )
        lost = not won and not drawn
        if illegal_of is not None:
            won, drawn, lost = False, False, player == illegal_of
        figures = metrics(win=won, draw=drawn, loss=lost, illegal=player == illegal_of)
        return figures | {"return": float(agent_return), "turns": float(self._turns[player])}


@functools.lru_cache(maxsize=64)
def _load(name: str, parameters: tuple[tuple[str, Any], ...]) -> Any:
    """A game, which its episodes share: bridge's takes seconds. Not for one that holds chance of its own."""
    return pyspiel.load_game(name, dict(parameters))


def _unbracketed(text: str) -> str:
    return text.replace("[", "(").replace("]", ")").strip()


def _bounds(game: Any) -> tuple[float, float]:
    """(the lowest return, the largest amount that a return can be)."""
    least, most = game.min_utility(), game.max_utility()
    if not math.isfinite(least) or not math.isfinite(most):
        raise ValueError(f"returns of {game} have no bounds")
    return least, max(abs(least), abs(most)) or 1.0


def _parameters(game: str, given: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The given parameters, if they are the game's and harmless. Raises ValueError."""
    open_to_all = sorted(key for key in defaults if not key.endswith(("file", "filename", "root")))
    for key, value in given.items():
        if key not in open_to_all:
            raise ValueError(
                f"unknown parameter {key!r} of {game}; known are {', '.join(open_to_all) or 'none'}"
            )
        if type(value) is not type(defaults[key]):
            raise ValueError(f"parameter {key} {value!r} is not like the game's own, {defaults[key]!r}")
        if isinstance(value, (int, float)):
            low, high = min(0, defaults[key]), max(MAX_PARAMETER, defaults[key])
            if not low <= value <= high:
                raise ValueError(f"parameter {key} {value!r} is not between {low:g} and {high:g}")
        if isinstance(value, str) and len(value) > 1_000:
            raise ValueError(f"parameter {key} has {len(value)} characters, more than 1000")
    return dict(given)


def _types() -> dict[str, Any]:
    if not _shared:
        _shared.update((kind.short_name, kind) for kind in pyspiel.registered_games())
    return _shared


_shared: dict[str, Any] = {}


def _seats(kind: Any) -> int:
    """Returns the number of seats that a client may play: both of two players in turn, else one."""
    in_turn = kind.dynamics == _KINDS.Dynamics.SEQUENTIAL
    return 2 if in_turn and kind.min_num_players <= 2 <= kind.max_num_players else 1


def left_out() -> dict[str, str]:
    """Registered games that no host serves → why."""
    made_of = [name for name, kind in _types().items() if not kind.default_loadable]
    return LEFT_OUT | dict.fromkeys(made_of, "is made of another game, or of a file, that a parameter names")


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module."""
    skipped = _ELSEWHERE | set(left_out())
    return [
        variant(
            OpenSpielGame,
            f"open_spiel/{name}",
            f"OpenSpiel's {kind.long_name}; moves in brackets, as they are listed.",
            game_name=name,
            seats=_seats(kind),
        )
        for name, kind in _types().items()
        if name not in skipped
    ]
