"""Texts of gymnasium's own environments: rules, names of actions, what an observation says.

Reward bounds hold for every task: step rewards times gymnasium.MAX_STEPS, and what an illegal move costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from earl.env.adapters.settings import ChoiceSetting, Number, Setting, Whole

MAX_STEPS = 1_000


@dataclass(frozen=True, slots=True)
class GymnasiumView:
    """One environment as an agent sees it.

    rules: said once, with the first observation. moves: names of the actions of a Discrete space, none:
    their numbers. show(environment, observation) → text. won(total reward, terminated, truncated).
    worst: the lowest reward of one step; what an illegal move costs for each step that was left, so that
    giving up is never better than playing badly. total: whether `worst` is the whole episode's instead.
    rewards: bounds of an episode's return. arguments: task keys given to the environment's constructor.
    """

    rules: str
    show: Callable[[Any, Any], str]
    moves: tuple[str, ...] = ()
    won: Callable[[float, bool, bool], bool] = lambda total, terminated, truncated: total > 0
    worst: float = 0.0
    total: bool = False
    rewards: tuple[float, float] | None = None
    max_steps: int | None = None
    arguments: Mapping[str, Setting] = field(default_factory=dict)

    def forfeit(self, left: int) -> float:
        """The reward of an illegal move when `left` steps were left, this one counted."""
        return self.worst if self.total else self.worst * left


def _flag(default: bool) -> Setting:
    return ChoiceSetting(default, not default)


def _has_terminated(total: float, terminated: bool, truncated: bool) -> bool:
    return terminated


def numbers(*names: str) -> Callable[[Any, Any], str]:
    """Shows a vector, each number under its name."""

    def show(environment: Any, observation: Any) -> str:
        return ", ".join(f"{name} {number:.4g}" for name, number in zip(names, observation, strict=True))

    return show


def _frozen_lake(environment: Any, observation: Any) -> str:
    columns = environment.ncol
    row, column = divmod(int(observation), columns)
    cells = [[cell.decode() for cell in line] for line in environment.desc.tolist()]
    cells[row][column] = f"[{cells[row][column]}]"
    return "\n".join(" ".join(line) for line in cells)


def _cliff(environment: Any, observation: Any) -> str:
    return "\n".join(line.strip() for line in environment.render().strip().splitlines())


def _taxi(environment: Any, observation: Any) -> str:
    row, column, passenger, destination = environment.decode(int(observation))
    stands = "RGYB"
    where = "in the taxi" if passenger == 4 else f"at {stands[passenger]}"
    board = [list(line.decode() if isinstance(line, bytes) else line) for line in _taxi_map(environment)]
    cell = board[1 + row][2 * column + 1]
    board[1 + row][2 * column + 1] = "t" if cell != " " else "T"
    stand = f" (at {cell})" if cell != " " else ""
    drawn = "\n".join("".join(line) for line in board)
    return (
        f"{drawn}\nTaxi: row {row}, column {column}{stand}. Passenger: {where}. "
        f"Destination: {stands[destination]}."
    )


def _taxi_map(environment: Any) -> list[str]:
    return [b"".join(line).decode() for line in environment.desc.tolist()]


def _blackjack(environment: Any, observation: Any) -> str:
    mine, dealers, ace = observation
    usable = "with" if ace else "without"
    return f"Your cards: {int(mine)}, {usable} a usable ace. The dealer shows {int(dealers)}."


_WALK = ("left", "down", "right", "up")
_LAKE_RULES = (
    "Cross the frozen lake from S to G. F is ice, H a hole: falling into it ends the walk. "
    "You are where the brackets are. Ice may be slippery: you may slide to a side.\n"
    "Answer [left], [down], [right] or [up]."
)
_LAKE: dict[str, Any] = {
    "rules": _LAKE_RULES,
    "show": _frozen_lake,
    "moves": _WALK,
    "rewards": (0.0, 1.0),
    # map_size: a random map of so many rows, drawn from the seed; 0: the environment's own.
    "arguments": {
        "is_slippery": _flag(True),
        "success_rate": Number(1 / 3, 0, 1),
        "map_size": Whole(0, 0, 12),
    },
}
_CLIFF: dict[str, Any] = {
    "rules": (
        "Walk from the lower left corner to T. x is you, o is ground, C the cliff: stepping on it costs 100 "
        "and takes you back to the start. Every step costs 1.\nAnswer [up], [right], [down] or [left]."
    ),
    "show": _cliff,
    "moves": ("up", "right", "down", "left"),
    "won": _has_terminated,
    "worst": -100.0,
    "rewards": (-100.0 * MAX_STEPS, 0.0),
    "max_steps": 200,
}
_CART_POLE: dict[str, Any] = {
    "rules": (
        "Keep the pole upright by pushing the cart. The episode ends when the pole tilts by more than "
        "0.21 rad or the cart is more than 2.4 from the middle.\nAnswer [left] or [right]."
    ),
    "show": numbers("cart position", "cart velocity", "pole angle", "pole angular velocity"),
    "moves": ("left", "right"),
    "won": lambda total, terminated, truncated: truncated and not terminated,
    "rewards": (0.0, float(MAX_STEPS)),
}
_CAR = "Drive the car out of the valley, up the hill on the right; the engine alone is too weak: swing. "

VIEWS: dict[str, GymnasiumView] = {
    "FrozenLake-v1": GymnasiumView(**_LAKE),
    "FrozenLake8x8-v1": GymnasiumView(**_LAKE),
    "CliffWalking-v1": GymnasiumView(**_CLIFF),
    "CliffWalkingSlippery-v1": GymnasiumView(**_CLIFF),
    "Taxi-v4": GymnasiumView(
        rules=(
            "Fetch the passenger and bring them to the destination: each is one of R, G, Y, B. T (or t, on "
            "a stand) is the taxi; it passes : but not |. Every step costs 1, a wrong pickup or dropoff "
            "10, a delivery earns 20.\n"
            "Answer [down], [up], [right], [left], [pickup] or [dropoff]; down is south."
        ),
        show=_taxi,
        moves=("down", "up", "right", "left", "pickup", "dropoff"),
        won=_has_terminated,
        worst=-10.0,
        rewards=(-10.0 * MAX_STEPS, 20.0),
        arguments={"is_rainy": _flag(False), "fickle_passenger": _flag(False)},
    ),
    "Blackjack-v1": GymnasiumView(
        rules=(
            "Come nearer to 21 than the dealer without going over. An ace counts 1, or 11 where usable.\n"
            "Answer [stick] or [hit]."
        ),
        show=_blackjack,
        moves=("stick", "hit"),
        worst=-1.0,
        total=True,
        rewards=(-1.0, 1.5),
        max_steps=30,
        arguments={"natural": _flag(False), "sab": _flag(True)},
    ),
    "CartPole-v1": GymnasiumView(**_CART_POLE),
    "MountainCar-v0": GymnasiumView(
        rules=_CAR + "Every step costs 1.\nAnswer [left], [coast] or [right].",
        show=numbers("position (goal 0.5)", "velocity"),
        moves=("left", "coast", "right"),
        won=_has_terminated,
        worst=-1.0,
        rewards=(-1.0 * MAX_STEPS, 0.0),
    ),
    "MountainCarContinuous-v0": GymnasiumView(
        rules=_CAR + "A force f costs 0.1 f² a step, the top earns 100.\nAnswer a force from -1 to 1: [0.5].",
        show=numbers("position (goal 0.45)", "velocity"),
        won=_has_terminated,
        worst=-0.1,
        rewards=(-0.1 * MAX_STEPS, 100.0),
    ),
    "Acrobot-v1": GymnasiumView(
        rules=(
            "Two links hang from a joint. Swing the free end above the line one link's length over the "
            "joint, by a torque at the middle joint. Every step costs 1.\n"
            "Answer [-1], [0] or [1], the torque."
        ),
        show=numbers(
            "cos of link 1",
            "sin of link 1",
            "cos of link 2",
            "sin of link 2",
            "angular velocity 1",
            "angular velocity 2",
        ),
        moves=("-1", "0", "1"),
        won=_has_terminated,
        worst=-1.0,
        rewards=(-1.0 * MAX_STEPS, 0.0),
    ),
    "Pendulum-v1": GymnasiumView(
        rules=(
            "Swing the pendulum up and hold it there with little torque; a step costs angle² + "
            "0.1 velocity² + 0.001 torque².\nAnswer a torque from -2 to 2: [0.5]."
        ),
        show=numbers("x", "y", "angular velocity"),
        # No step's reward is above 0; -250 of 200 steps is a pendulum that was swung up and held.
        won=lambda total, terminated, truncated: total > -250.0,
        worst=-16.28,
        rewards=(-16.28 * MAX_STEPS, 0.0),
    ),
}
