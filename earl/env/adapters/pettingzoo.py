"""Games of PettingZoo (package pettingzoo), turn by turn: its AEC interface.

"pettingzoo/tictactoe_v3" and "pettingzoo/connect_four_v3"; one of your own is

    mine = environment(my_package.env, name="mine/game", reward_range=(-1.0, 1.0))

and served as "module:mine". Agents, in the order of possible_agents, are seats. A client that opens a session
with one seat plays `player`, and one that opens it with several plays the first of them; everybody else
plays random legal moves.

Task: {"player": 0, "max_turns": 200}. An action is the number of a Discrete space, or its name, in brackets,
"[4]"; the last brackets of a text count. Legal are those of the action mask, or all without one. Anything
else ends the episode: its seat's return is then the lowest that is declared (illegal_reward for your own);
every other seat gets 0, as neither a win nor a draw nor a loss: it would else learn that what it did before
has won.
After max_turns actions of a seat that the client plays the episode is truncated.

Rewards are PettingZoo's own, of each step. Metrics, of each seat that the client plays: win (the highest
return of all, not everybody's), draw (all returns equal), loss, illegal, each 0 or 1, and turns. All chance
comes from the seed, as far as the environment's own follows from that of its reset.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import pettingzoo
from gymnasium import spaces

from earl.env.adapters import move_text, seat_results
from earl.env.adapters.metrics import metrics
from earl.env.adapters.settings import Setting, Whole, checked
from earl.env.adapters.variants import variant
from earl.env.base import Environment, Observation, StepResult

MAX_TEXT_CHARACTERS = 8_000
_MAX_OTHERS = 10_000
_MARKS = "xo"

# (the AEC environment, its observation of a seat, the seat) → the text.
Show = Callable[[Any, Any, int], str]


class PettingZooEnvironment(Environment):
    """One game; `make`, `show` (a Show), `actions` and `illegal_reward` are the class's."""

    make: ClassVar[Any]
    show: ClassVar[Any]
    actions: ClassVar[Sequence[str]] = ()
    illegal_reward: ClassVar[float] = 0.0

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """Starts a game. Raises ValueError for a malformed task."""
        self._game = self.make()
        self._agents = list(self._game.possible_agents)
        keys: dict[str, Setting] = {
            "player": Whole(0, 0, len(self._agents) - 1),
            "max_turns": Whole(200, 1, 10_000),
        }
        settings = checked(task, keys)
        self._player: int = settings["player"]
        self._max_turns: int = settings["max_turns"]
        self._played = (self._player,) if self.seats_played == 1 else tuple(range(self.seats_played))
        self._turns = dict.fromkeys(self._played, 0)
        self._rng = random.Random(f"pettingzoo/{seed}")
        # Sums of all rewards, and what was earned since the client's last action.
        self._returns = [0.0] * len(self._agents)
        self._earned = [0.0] * len(self._agents)
        self._game.reset(seed=seed % (1 << 32))
        if self._until_turn():
            raise RuntimeError(f"{self.name} was over before seat {self._played[0]} could move")
        return self._observation()

    def step(self, action: str) -> StepResult:
        """Plays the move of the seat whose turn it is, then the others' until it is the client's turn."""
        mover = self._mover
        self._turns[mover] += 1
        place = move_text.chosen_move(action, self._places)
        if place is None:
            return self._last("That is not a legal move.", mover, illegal=True)
        self._take(self._legal[place])
        over = self._until_turn()
        if over or self._turns[mover] >= self._max_turns:
            return self._last(self._text(mover), mover, truncated=not over or self._only_truncated)
        rewards = self._rewards()
        shown = self._observation()
        if self.seats_played == 1:
            return StepResult(shown, rewards[0])
        return StepResult(shown, rewards=rewards)

    def close(self) -> None:
        """Releases the game."""
        if (game := getattr(self, "_game", None)) is not None:
            game.close()

    # --- moves -------------------------------------------------------------------------------

    def _take(self, action: int) -> None:
        self._game.step(action)
        for seat, agent in enumerate(self._agents):
            reward = float(self._game.rewards.get(agent, 0.0))
            self._earned[seat] += reward
            self._returns[seat] += reward

    def _until_turn(self) -> bool:
        """Plays the others' moves. False: it is the client's turn; True: the game is over."""
        game = self._game
        for _ in range(_MAX_OTHERS):
            ended = [game.terminations[agent] or game.truncations[agent] for agent in game.agents]
            if all(ended):
                self._only_truncated = bool(game.agents) and not any(game.terminations.values())
                return True
            agent = game.agent_selection
            if game.terminations[agent] or game.truncations[agent]:
                game.step(None)  # it is out of the game, which continues without it
                continue
            seat = self._agents.index(agent)
            if seat in self._played:
                self._mover = seat
                return False
            self._take(self._rng.choice(self._legal_actions(seat)))
        raise RuntimeError(f"the others made {_MAX_OTHERS} moves in a row in {self.name}")

    def _legal_actions(self, seat: int) -> list[int]:
        agent = self._agents[seat]
        space = self._game.action_space(agent)
        if not isinstance(space, spaces.Discrete):
            raise ValueError(
                f"actions of {self.name} are a {type(space).__name__}: only Discrete has a text form"
            )
        observation = self._game.observe(agent)
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        if mask is None:
            mask = self._game.infos[agent].get("action_mask")
        start, count = int(space.start), int(space.n)
        return [start + place for place in range(count) if mask is None or mask[place]]

    # --- what a seat sees --------------------------------------------------------------------

    def _observation(self) -> Observation:
        seat = self._mover
        self._legal = self._legal_actions(seat)
        names = [self.actions[action] if self.actions else str(action) for action in self._legal]
        self._places = move_text.moves_by_name(names)
        listed = [f"[{name}]" for name in names]
        return Observation(self._text(seat), listed, seat=seat if self.seats_played > 1 else 0)

    def _text(self, seat: int) -> str:
        text = self.show(self._game.unwrapped, self._game.observe(self._agents[seat]), seat)
        return move_text.shortened(text, MAX_TEXT_CHARACTERS)

    # --- what it earns -----------------------------------------------------------------------

    def _rewards(self) -> list[float]:
        """Returns what each seat of the client has earned since the last call."""
        rewards = [self._earned[seat] for seat in self._played]
        self._earned = [0.0] * len(self._agents)
        return rewards

    def _last(self, text: str, mover: int, *, illegal: bool = False, truncated: bool = False) -> StepResult:
        rewards = self._rewards()
        best, worst = max(self._returns), min(self._returns)
        outcomes: list[seat_results.SeatOutcome] = []
        for seat, reward in zip(self._played, rewards, strict=True):
            mine, decided = illegal and seat == mover, not illegal and not truncated
            drawn = decided and best == worst
            won = decided and not drawn and self._returns[seat] == best
            lost = mine or (decided and not drawn and not won)
            figures = metrics(win=won, draw=drawn, loss=lost, illegal=mine, turns=self._turns[seat])
            before = self._returns[seat] - reward
            outcomes.append((self.illegal_reward - before if mine else reward, figures))
        return seat_results.last(text, mover, outcomes, truncated=truncated)


def environment(
    make: Callable[[], Any],
    *,
    name: str,
    description: str = "",
    show: Show | None = None,
    actions: Sequence[str] = (),
    illegal_reward: float | None = None,
    reward_range: tuple[float, float] | None = None,
) -> type[PettingZooEnvironment]:
    """The class that serves the AEC environment that make() returns.

    show: what a seat reads; without it, the observation as numbers. actions: names of the Discrete space's
    actions from 0. illegal_reward: a seat's return after a move of it that is none; without it the low end of
    reward_range, or 0. reward_range: bounds of an episode's return for each seat, if it has any.
    """
    if illegal_reward is None:
        illegal_reward = reward_range[0] if reward_range else 0.0
    made = make()
    agents = len(made.possible_agents)
    made.close()
    return variant(
        PettingZooEnvironment,
        name,
        description or f"PettingZoo's {made.metadata.get('name', name)}; actions in brackets.",
        make=staticmethod(make),
        show=staticmethod(show or _numbers),
        actions=tuple(actions),
        illegal_reward=illegal_reward,
        reward_range=reward_range,
        seats=agents,
    )


def _numbers(game: Any, observation: Any, seat: int) -> str:
    """An observation as its numbers, without the action mask."""
    numbers: Any = observation["observation"] if isinstance(observation, dict) else observation
    plain = numbers.tolist() if hasattr(numbers, "tolist") else numbers
    return f"You are player {seat}.\n{plain}"


def _grid(game: Any, observation: Any, seat: int) -> str:
    """A board of two planes, of the own stones and the other's, as rows separated by "/"."""
    mine, theirs = _MARKS[seat], _MARKS[1 - seat]
    planes = observation["observation"]
    rows = [
        " ".join(mine if stone else theirs if other_stone else "." for stone, other_stone in row)
        for row in planes.tolist()
    ]
    return f"You are {mine}. " + " / ".join(rows)


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module."""
    return [
        environment(
            partial(pettingzoo.make, "aec", f"classic/{name.replace('_v', '-v')}"),
            name=f"pettingzoo/{name}",
            description=f"PettingZoo's {name}; {moves}.",
            show=_grid,
            reward_range=(-1.0, 1.0),
        )
        for name, moves in (
            ("tictactoe_v3", "an action [d] marks cell d, 0-8 row by row"),
            ("connect_four_v3", "an action [d] drops a stone into column d, 0-6"),
        )
    ]
