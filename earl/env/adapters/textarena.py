"""Text games of TextArena (package textarena): alone, or against opponents that move at random.

"textarena/ID" for the ids of textarena_games.py, for example "textarena/TicTacToe-v0". Rules, boards and
what counts as a move are the game's; most moves are in brackets, "[4]", and a text without brackets is
put into them, as TextArena's own wrapper does. An observation has what is new to the agent: the rules
with the first one, then what happened since its last move, of boards the last one only.

Task: {"player": 0, "players": the fewest the game takes, "retries": the game's own, "max_turns": 200,
"legal_actions": false}. The agent is `player` of `players`; everybody else plays random legal moves: of
what the game has named in brackets and of the game's own grammar, those that a copy of the game takes.
"retries" bounds illegal moves in a row; one more loses the game (TextArena's rule, mostly after 1). Where
TextArena only says so and lets the game continue, as in Poker, Santorini, Settlers of Catan and with
several players in general, the episode ends here, with the least reward that the game pays.
After max_turns actions of a player that the client plays the episode is truncated. "legal_actions" lists
up to LISTED_MOVES moves that the game takes, for a warm-up or a random policy, at the cost of up to a few
hundred copies a turn; of puzzles that would give their solution away it lists moves of the right form, not
all of them legal.

A game of two has two seats: where a client plays both, `player` says nothing. A seat that loses by illegal
moves gets TextArena's reward for it, and the other 0 instead of a win's, as neither a win nor a draw nor a
loss: it would else learn that what it said before has won.

Reward at the end: TextArena's own for the player. Metrics: win (the best reward of all, and above 0;
alone: a reward of 1), draw, loss, illegal (lost by illegal moves), each 0 or 1, and turns, of each seat.
All chance comes from the seed (episode_random.py). Nothing is downloaded: games that need word lists which
are not installed refuse with what to do.
"""

from __future__ import annotations

import contextlib
import random
import threading
from itertools import islice
from typing import Any, ClassVar

import textarena

from earl.env.adapters import episode_random, move_text, seat_results
from earl.env.adapters import textarena_moves as moves
from earl.env.adapters.metrics import metrics
from earl.env.adapters.settings import ChoiceSetting, Setting, Whole, checked
from earl.env.adapters.textarena_games import GAMES, GameForms
from earl.env.adapters.variants import variant
from earl.env.base import Environment, Observation, StepResult

MAX_TEXT_CHARACTERS = 16_000
LISTED_MOVES = 64
# Makes its rooms in globals of its module: one room at a time.
_SOKOBAN = threading.Lock()
# Moves of opponents between two of the agent's; more means that the agent is out of the game.
_MAX_OTHERS = 2_000
# Candidates that an opponent tries before it is at a loss.
_MAX_TRIALS = 2_000
_MAX_LISTED_TRIALS = 300


class TextArenaGame(Environment):
    """One id of TextArena's registry."""

    id: ClassVar[str]
    game: ClassVar[GameForms]

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """Starts a game.

        Raises ValueError for a malformed task, and for a game that cannot be played here.
        """
        fewest, most = self.game.players
        settings = checked(task, _keys(fewest, most))
        players = settings["players"]
        if self.seats_played > 1 and players != self.seats_played:
            text = f"players {players!r}: a client that plays {self.seats_played} seats plays all of them"
            raise ValueError(text)
        if settings["player"] >= players:
            raise ValueError(
                f"player {settings['player']!r} is not one of {players} players, 0 to {players - 1}"
            )
        if refusal := moves.refusal(self.id, self.game):
            raise ValueError(refusal)
        self._player: int = settings["player"]
        self._played = (self._player,) if self.seats_played == 1 else tuple(range(players))
        self._max_turns: int = settings["max_turns"]
        self._listing: bool = settings["legal_actions"]
        # Illegal moves in a row, and actions, of each player that the client plays; whose turn it is.
        self._refusals_in_row = dict.fromkeys(self._played, 0)
        self._turns = dict.fromkeys(self._played, 0)
        self._mover = self._player
        self._brackets = moves.puts_brackets(self.id)
        self._chance = random.Random(f"textarena/{seed}")
        self._others = random.Random(f"opponents/{seed}")
        self._seats = [moves.TextArenaSeat() for _ in range(players)]
        alone = _SOKOBAN if self.id.startswith("Sokoban-") else contextlib.nullcontext()
        with alone, episode_random.chance(self._chance):
            self._playing = moves.make_game(self.id)
            self._playing.reset(num_players=players, seed=self._chance.getrandbits(32))
        if settings["retries"] is not None:
            self._playing.state.error_allowance = settings["retries"]
        self._messages: moves.Messages = []
        if self._until_turn():
            raise RuntimeError(f"textarena's {self.id} was over before player {self._player} could move")
        return self._observation()

    def step(self, action: str) -> StepResult:
        """Plays the move of the player whose turn it is, then opponents' until it is the client's turn."""
        mover = self._mover
        self._turns[mover] += 1
        text = action[: move_text.MAX_ACTION_CHARACTERS]
        if self._brackets and "[" not in text and "]" not in text:
            text = f"[{text}]"
        over = self._take_of_agent(text)
        if not over and self._refusals_in_row[mover] > self._playing.state.error_allowance:
            return self._lost(mover)
        if over or self._until_turn():
            return self._ended(mover)
        if self._turns[mover] >= self._max_turns:
            # The text is the new one of the player whose turn it is: none if that is the other seat.
            text = self._text() if self._mover == mover else ""
            undecided = [(0.0, self._figures(player)) for player in self._played]
            return seat_results.last(text, mover, undecided, truncated=True)
        return seat_results.running(self._observation(), self.seats_played)

    def _take_of_agent(self, move: str) -> bool:
        """Plays a move of the agent, and counts those in a row that the game refused."""
        state, refused = self._playing.state, False
        refuse = state.set_invalid_move

        def note_refusal(*values: Any, **options: Any) -> Any:
            nonlocal refused
            refused = True
            return refuse(*values, **options)

        state.set_invalid_move = note_refusal
        try:
            over = self._take(move)
        finally:
            del state.set_invalid_move  # copies of the game take the class's again
        self._refusals_in_row[self._mover] = self._refusals_in_row[self._mover] + 1 if refused else 0
        return over

    def _take(self, move: str) -> bool:
        with episode_random.chance(self._chance):
            done, _ = self._playing.step(move)
        return bool(done)

    def _until_turn(self) -> bool:
        """Plays the opponents' moves. False: it is the client's turn; True: the game is over."""
        for _ in range(_MAX_OTHERS):
            with episode_random.chance(self._chance):
                player, observed = self._playing.get_observation()
            messages = moves.tidy(observed)
            self._seats[player].note(messages)
            if player in self._played:
                self._mover = player
                self._messages = messages
                return False
            if self._take(self._random_move(player)):
                return True
        raise RuntimeError(f"opponents made {_MAX_OTHERS} moves in a row in textarena's {self.id}")

    def _random_move(self, player: int) -> str:
        trials = 0
        for move in self._seats[player].candidates(self._playing, self.game, self._others):
            if moves.takes(self._playing, move, self._chance):
                return move
            trials += 1
            if trials == _MAX_TRIALS:
                break
        # A game that an opponent's fault decides would reward the agent for nothing.
        raise RuntimeError(f"opponent {player} found no legal move in textarena's {self.id}, {trials} tried")

    # --- what the agent sees -----------------------------------------------------------------

    def _observation(self) -> Observation:
        seat = self._mover if self.seats_played > 1 else 0
        return Observation(self._text(), self._legal() if self._listing else (), seat=seat)

    def _text(self) -> str:
        kinds = textarena.ObservationType
        echo = (self._mover, kinds.PLAYER_ACTION)
        messages = [message for message in self._messages if (message[0], message[2]) != echo]
        boards = [place for place, message in enumerate(messages) if message[2] is kinds.GAME_BOARD]
        names = self._playing.state.role_mapping
        messages = [
            _line(names.get(speaker, f"Player {speaker}") if speaker >= 0 else "", text)
            for place, (speaker, text, _) in enumerate(messages)
            if place not in boards[:-1]
        ]
        return move_text.shortened("\n\n".join(messages), MAX_TEXT_CHARACTERS)

    def _legal(self) -> list[str]:
        generator = random.Random(self._turns[self._mover])
        candidates = self._seats[self._mover].candidates(self._playing, self.game, generator)
        if not self.game.tried:
            return sorted(islice(candidates, LISTED_MOVES))
        tried = islice(candidates, _MAX_LISTED_TRIALS)
        taken = (move for move in tried if moves.takes(self._playing, move, self._chance))
        return sorted(islice(taken, LISTED_MOVES))

    # --- how it ends -------------------------------------------------------------------------

    def _ended(self, mover: int) -> StepResult:
        """The last result, after a step of `mover` that ended the game."""
        rewards, game_info = self._playing.close()
        illegal = {player for player, about in game_info.items() if about.get("invalid_move")}
        if others := sorted(illegal.difference(self._played)):
            raise RuntimeError(f"opponent {others[0]} lost textarena's {self.id} by an illegal move")
        rewards = {player: _number(paid) for player, paid in rewards.items()}
        best, worst = max(rewards.values()), min(rewards.values())
        alone = len(self._seats) == 1
        outcomes: list[seat_results.SeatOutcome] = []
        for player in self._played:
            reward = rewards[player]
            if illegal and player not in illegal:
                outcomes.append((0.0, self._figures(player)))
                continue
            won = reward >= 1.0 if alone else reward > 0 and reward == best
            drawn = not alone and reward == best == worst
            figures = self._figures(
                player, win=won, draw=drawn, loss=not won and not drawn, illegal=player in illegal
            )
            outcomes.append((reward, figures))
        reason = str(game_info[mover].get("reason") or "")
        return seat_results.last(self._last_text(mover, reason), mover, outcomes)

    def _lost(self, mover: int) -> StepResult:
        """Ends a game that TextArena would continue after one illegal move too many of `mover`."""
        reason = f"{self._refusals_in_row[mover]} illegal moves in a row lose the game."
        outcomes: list[seat_results.SeatOutcome] = [
            (self.game.rewards[0], self._figures(player, loss=True, illegal=True))
            if player == mover
            else (0.0, self._figures(player))
            for player in self._played
        ]
        return seat_results.last(self._last_text(mover, reason), mover, outcomes)

    def _last_text(self, mover: int, reason: str) -> str:
        self._mover = mover
        self._messages = moves.tidy(self._playing.state.observations[mover])
        return "\n\n".join(part for part in (self._text(), reason) if part)

    def _figures(self, player: int, **decided: bool) -> dict[str, float]:
        undecided = dict.fromkeys(("win", "draw", "loss", "illegal"), False)
        return metrics(**undecided | decided, turns=self._turns[player])


def _number(reward: Any) -> float:
    """Some games give the reason of an illegal move in the reward's place: it loses."""
    return float(reward) if isinstance(reward, (int, float)) else -1.0


def _line(speaker: str, text: str) -> str:
    return f"{speaker}: {text.strip()}" if speaker else text.strip()


def _keys(fewest: int, most: int) -> dict[str, Setting]:
    return {
        "player": Whole(0, 0, most - 1),
        "players": Whole(fewest, fewest, most),
        "retries": Whole(None, 0, 100),
        "max_turns": Whole(200, 1, 1_000),
        "legal_actions": ChoiceSetting(False, True),
    }


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module."""
    return [
        variant(
            TextArenaGame,
            f"textarena/{id}",
            f"TextArena's {id}; moves in brackets, as its rules say.",
            reward_range=GAMES[game].rewards,
            id=id,
            game=GAMES[game],
            seats=2 if GAMES[game].players[0] == 2 else 1,
        )
        for id, game in moves.ids().items()
    ]
