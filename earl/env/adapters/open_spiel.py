"""Tic-tac-toe and Connect Four from OpenSpiel (package open-spiel), against a scripted opponent or, with two
seats, against the client itself.

Task: {"opponent": "random" | "minimax" | "one_ply", "player": 0 | 1, "opening": 0, "draw_reward": 0,
"illegal_reward": -1, "action": "[d]" | "d"}, and in Connect Four "view": "board" | "changes" | "relative".
The agent is `player`; player 0 (x) moves first. Reward at the end: 1 for a win, -1 for a loss. An action is
"[d]", or with "action": "d" the digit alone: a cell 0-8, row by row, or a column 0-6. Anything else, and a
move that is not legal, ends the episode as lost with illegal = 1. Minimax plays tic-tac-toe perfectly; in
Connect Four it looks CONNECT_FOUR_DEPTH moves ahead. A player of one ply takes a win, else blocks one, else
moves at random. All choices come from the seed.

With an opening of n, a game begins after 0 to n moves, each random among those that do not end it. How many
and which come from the seed, so episodes of one seed begin on the same board.

A client that plays both seats has seat 0 as x and seat 1 as o; `opponent` and `player` then say nothing. A
draw gives both draw_reward. An illegal move costs its seat illegal_reward; the other seat gets 0, as neither
a win nor a draw nor a loss: it would else learn that what it did before has won.

The last result's metrics, of each seat: win, draw, loss, illegal (each 0 or 1) and moves (its actions).
"""

from __future__ import annotations

import random
import re
from typing import Any, ClassVar

import pyspiel

from earl.env.adapters import alpha_beta, seat_results
from earl.env.adapters.metrics import metrics
from earl.env.adapters.settings import ChoiceSetting, Number, Setting, Whole, checked
from earl.env.base import Environment, Observation, StepResult

CONNECT_FOUR_DEPTH = 4

_ACTIONS = {"[d]": re.compile(r"\s*\[\s*([0-9])\s*\]\s*"), "d": re.compile(r"\s*([0-9])\s*")}
_TASK: dict[str, Setting] = {
    "opponent": ChoiceSetting("random", "minimax", "one_ply"),
    "player": ChoiceSetting(0, 1),
    "opening": Whole(0, 0, 40),
    "draw_reward": Number(0.0, -1, 1),
    "illegal_reward": Number(-1.0, -1, 1),
    "action": ChoiceSetting(*_ACTIONS),
}
_VIEW = ChoiceSetting("board", "changes", "relative")


class BoardGame(Environment):
    """A two-player OpenSpiel game whose actions have one digit."""

    game_name: ClassVar[str]
    task_keys: ClassVar[dict[str, Setting]] = _TASK
    reward_range = (-1.0, 1.0)
    seats = 2
    blocking = False

    def __init__(self) -> None:
        self._game = _load(self.game_name)

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """Starts a game; an opponent whose turn it is has moved already. ValueError for a bad task."""
        settings = checked(task, self.task_keys)
        self._begin(settings)
        self._player: int = settings["player"]
        self._opponent: str = settings["opponent"]
        self._draw_reward = settings["draw_reward"]
        self._illegal_reward = settings["illegal_reward"]
        self._action: str = settings["action"]
        self._rng = random.Random(seed)
        self._state = self._game.new_initial_state()
        self._open(settings["opening"])
        # Actions of each player.
        self._moves = [0, 0]
        self._let_opponent_move()
        return self._observation()

    def _begin(self, settings: dict[str, Any]) -> None:
        """Takes the game's own settings of a task."""

    def step(self, action: str) -> StepResult:
        """Moves for the player whose turn it is, and lets a scripted opponent answer."""
        state = self._state
        mover = state.current_player()
        self._moves[mover] += 1
        match = _ACTIONS[self._action].fullmatch(action)
        move = int(match[1]) if match else -1
        if move not in state.legal_actions():
            return self._ended(mover, illegal=True)
        state.apply_action(move)
        self._let_opponent_move()
        if state.is_terminal():
            return self._ended(mover)
        return seat_results.running(self._observation(), self.seats_played)

    def _ended(self, mover: int, illegal: bool = False) -> StepResult:
        """The last result, after a step of `mover`, which was illegal or ended the game."""
        players = (self._player,) if self.seats_played == 1 else (0, 1)
        outcomes = [self._outcome(player, mover, illegal) for player in players]
        return seat_results.last(self.text(mover), mover, outcomes)

    def _outcome(self, player: int, mover: int, illegal: bool) -> tuple[float, dict[str, float]]:
        """The player's reward and metrics."""
        return_ = self._state.returns()[player]
        won, lost = not illegal and return_ > 0, return_ < 0 or (illegal and player == mover)
        drawn = not illegal and return_ == 0
        figures = metrics(
            win=won, draw=drawn, loss=lost, illegal=illegal and player == mover, moves=self._moves[player]
        )
        if illegal:
            return (self._illegal_reward if player == mover else 0.0), figures
        return (self._draw_reward if drawn else return_), figures

    def _open(self, most: int) -> None:
        """Makes the random moves of an opening; fewer where each move would end the game, and one fewer where
        the turn would be a scripted opponent's, who could end it."""
        for _ in range(self._rng.randint(0, most) if most else 0):
            state = self._state
            harmless = [move for move in state.legal_actions() if not state.child(move).is_terminal()]
            if not harmless:
                break
            self._state = state.child(self._rng.choice(harmless))
        moves = self._state.history()
        if moves and self.seats_played == 1 and self._state.current_player() != self._player:
            self._state = self._game.new_initial_state()
            for move in moves[:-1]:
                self._state.apply_action(move)

    def _let_opponent_move(self) -> None:
        """Moves for the scripted opponent, if there is one and it is its turn."""
        state = self._state
        if self.seats_played == 2 or state.is_terminal() or state.current_player() == self._player:
            return
        mark = "ox"[self._player]
        if self._opponent == "minimax":
            move = self.best_move(mark)
        elif self._opponent == "one_ply":
            move = self.one_ply_move(mark)
        else:
            move = self._rng.choice(state.legal_actions())
        state.apply_action(move)

    def _observation(self) -> Observation:
        legal = [self._action.replace("d", str(move)) for move in self._state.legal_actions()]
        mover = self._state.current_player()
        return Observation(self.text(mover), legal, seat=mover if self.seats_played == 2 else 0)

    def text(self, player: int) -> str:
        """The board as it is shown to the player, once for each observation."""
        raise NotImplementedError

    def best_move(self, mark: str) -> int:
        """The minimax opponent's move."""
        raise NotImplementedError

    def one_ply_move(self, mark: str) -> int:
        """The move of the opponent of one ply."""
        raise NotImplementedError


class TicTacToe(BoardGame):
    """Nine cells on one line, row by row: a free cell is its digit, a taken one its mark and digit.

    "0 x1 2 3 o4 5 6 7 8": every word contains its position, which a small policy learns from faster.
    """

    name = "open_spiel/tic_tac_toe"
    description = "Tic-tac-toe; an action [d] marks cell d, 0-8 row by row."
    game_name = "tic_tac_toe"

    def _board(self) -> str:
        return str(self._state).replace("\n", "")

    def text(self, player: int) -> str:
        return " ".join(str(i) if cell == "." else f"{cell}{i}" for i, cell in enumerate(self._board()))

    def best_move(self, mark: str) -> int:
        return alpha_beta.best_tic_tac_toe(self._board(), mark, self._rng)

    def one_ply_move(self, mark: str) -> int:
        return alpha_beta.one_ply_tic_tac_toe(self._board(), mark, self._rng)


class ConnectFour(BoardGame):
    """Six rows of seven cells, the top row first, separated by "/"; a free cell is ".".

    With "view": "changes", an observation has only the stones since the player's last one, in order of play:
    "x30 o31" are x's at the foot of column 3 and o's above it; the first observation begins with the player's
    own mark. A turn then costs two words instead of 47, and its observations together name every stone once.
    With "relative", the same stones are mine and theirs: "m30 t31" for x is "t30 m31" for o. Both seats then
    read alike, so that what is learned in one serves in the other.
    """

    name = "open_spiel/connect_four"
    description = "Connect Four; an action [d] drops a stone into column d, 0-6."
    game_name = "connect_four"
    task_keys = _TASK | {"view": _VIEW}

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        # A look-ahead takes milliseconds: in a thread it holds up nobody's answers.
        self.blocking = task.get("opponent") == "minimax" and self.seats_played == 1
        return super().reset(seed, task)

    def _begin(self, settings: dict[str, Any]) -> None:
        self._view: str = settings["view"]
        # Stones that each player has been shown; None: no observation yet.
        self._shown: list[int | None] = [None, None]

    def _rows(self) -> list[str]:
        return str(self._state).split()

    def text(self, player: int) -> str:
        if self._view == "board":
            return " / ".join(" ".join(row) for row in self._rows())
        stones = self._stones("xo" if self._view == "changes" else ("mt", "tm")[player])
        before, self._shown[player] = self._shown[player], len(stones)
        return " ".join(["xo"[player], *stones] if before is None else stones[before:])

    def _stones(self, marks: str) -> list[str]:
        """All stones in order of play: mark, column, height. marks: x's and o's."""
        heights = [0] * alpha_beta.COLUMNS
        stones: list[str] = []
        for ply, column in enumerate(self._state.history()):
            stones.append(f"{marks[ply % 2]}{column}{heights[column]}")
            heights[column] += 1
        return stones

    def best_move(self, mark: str) -> int:
        return alpha_beta.best_connect_four(self._rows(), mark, CONNECT_FOUR_DEPTH, self._rng)

    def one_ply_move(self, mark: str) -> int:
        return alpha_beta.one_ply_connect_four(self._rows(), mark, self._rng)


_games: dict[str, Any] = {}


def _load(name: str) -> Any:
    if name not in _games:
        _games[name] = pyspiel.load_game(name)
    return _games[name]


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module."""
    return [TicTacToe, ConnectFour]
