"""Tic-tac-toe and Connect Four from OpenSpiel (package open-spiel), against a scripted opponent.

Task: {"opponent": "random" | "minimax", "player": 0 | 1, "draw_reward": 0, "illegal_reward": -1}. The
agent is `player`; player 0 (x) moves first. Reward at the end: 1 for a win, -1 for a loss. An action is
"[d]": a cell 0-8, row by row, or a column 0-6. Anything else, and a move that is not legal, ends the
episode as lost with illegal = 1. Minimax plays tic-tac-toe perfectly; in Connect Four it looks
CONNECT_FOUR_DEPTH moves ahead. All choices come from the seed.

The last result's metrics: win, draw, loss, illegal (each 0 or 1) and moves (the agent's actions).
"""

from __future__ import annotations

import random
import re
from typing import Any, ClassVar

import pyspiel

from earl.env.adapters import alpha_beta
from earl.env.adapters.settings import ChoiceSetting, Number, Setting, checked
from earl.env.base import Environment, Observation, StepResult

CONNECT_FOUR_DEPTH = 4

_ACTION = re.compile(r"\s*\[\s*([0-9])\s*\]\s*")
_TASK: dict[str, Setting] = {
    "opponent": ChoiceSetting("random", "minimax"),
    "player": ChoiceSetting(0, 1),
    "draw_reward": Number(0.0, -1, 1),
    "illegal_reward": Number(-1.0, -1, 1),
}


class BoardGame(Environment):
    """A two-player OpenSpiel game with single-digit actions."""

    game_name: ClassVar[str]
    reward_range = (-1.0, 1.0)
    blocking = False

    def __init__(self) -> None:
        self._game = _load(self.game_name)

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """Starts a game; an opponent that is player 0 has moved already. ValueError for a bad task."""
        settings = checked(task, _TASK)
        self._player: int = settings["player"]
        self._minimax = settings["opponent"] == "minimax"
        self._draw_reward = settings["draw_reward"]
        self._illegal_reward = settings["illegal_reward"]
        self._rng = random.Random(seed)
        self._state = self._game.new_initial_state()
        self._moves = 0
        if self._state.current_player() != self._player:
            self._opponent_moves()
        return self._observation()

    def step(self, action: str) -> StepResult:
        """Move, and let the opponent answer."""
        self._moves += 1
        match = _ACTION.fullmatch(action)
        state = self._state
        move = int(match[1]) if match else -1
        if move not in state.legal_actions():
            return self._ended(self._illegal_reward, loss=1.0, illegal=1.0)
        state.apply_action(move)
        if not state.is_terminal():
            self._opponent_moves()
        if not state.is_terminal():
            return StepResult(self._observation())
        agent_return = state.returns()[self._player]
        if agent_return > 0:
            return self._ended(1.0, win=1.0)
        return self._ended(-1.0, loss=1.0) if agent_return < 0 else self._ended(self._draw_reward, draw=1.0)

    def _ended(self, reward: float, **counted: float) -> StepResult:
        metrics = {"win": 0.0, "draw": 0.0, "loss": 0.0, "illegal": 0.0, "moves": float(self._moves)}
        return StepResult(Observation(self.text()), reward, done=True, metrics=metrics | counted)

    def _opponent_moves(self) -> None:
        state = self._state
        move = (
            self.best_move("ox"[self._player]) if self._minimax else self._rng.choice(state.legal_actions())
        )
        state.apply_action(move)

    def _observation(self) -> Observation:
        return Observation(self.text(), [f"[{move}]" for move in self._state.legal_actions()])

    def text(self) -> str:
        """The board as the agent sees it."""
        raise NotImplementedError

    def best_move(self, mark: str) -> int:
        """The minimax opponent's move."""
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

    def text(self) -> str:
        return " ".join(str(i) if cell == "." else f"{cell}{i}" for i, cell in enumerate(self._board()))

    def best_move(self, mark: str) -> int:
        return alpha_beta.best_tic_tac_toe(self._board(), mark, self._rng)


class ConnectFour(BoardGame):
    """Six rows of seven cells, the top row first, separated by "/"; a free cell is "."."""

    name = "open_spiel/connect_four"
    description = "Connect Four; an action [d] drops a stone into column d, 0-6."
    game_name = "connect_four"

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        # A look-ahead takes milliseconds: in a thread it holds up nobody's answers.
        self.blocking = task.get("opponent") == "minimax"
        return super().reset(seed, task)

    def _rows(self) -> list[str]:
        return str(self._state).split()

    def text(self) -> str:
        return " / ".join(" ".join(row) for row in self._rows())

    def best_move(self, mark: str) -> int:
        return alpha_beta.best_connect_four(self._rows(), mark, CONNECT_FOUR_DEPTH, self._rng)


_games: dict[str, Any] = {}


def _load(name: str) -> Any:
    if name not in _games:
        _games[name] = pyspiel.load_game(name)
    return _games[name]


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module."""
    return [TicTacToe, ConnectFour]
