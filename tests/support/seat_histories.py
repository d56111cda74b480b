"""The history of each seat of a session, and the session put together again from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from earl.env import Environment, Observation, StepResult

Chooser = Callable[[Observation], str]


@dataclass
class History:
    """One seat: its observations and actions in turn, what it earned after each step of anybody."""

    turns: list[tuple[str, str]] = field(default_factory=list)
    earned: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def return_(self) -> float:
        return math.fsum(self.earned)


def begun(make: Callable[[], Environment], seed: int, task: dict[str, Any], seats: int = 2) -> Any:
    """An environment whose client plays so many seats, and its first observation."""
    environment = make()
    environment.seats_played = seats
    return environment, environment.reset(seed, task)


def played(
    make: Callable[[], Environment], seed: int, task: dict[str, Any], choose: Chooser, seats: int = 2
) -> tuple[list[History], StepResult]:
    """Plays a session of all seats; checks what holds of every step of it."""
    environment, shown = begun(make, seed, task, seats)
    histories = [History() for _ in range(seats)]
    while True:
        mover, action = shown.seat, choose(shown)
        assert 0 <= mover < seats
        histories[mover].turns.append((shown.text, action))
        result = environment.step(action)
        assert len(result.rewards) == seats and all(map(math.isfinite, result.rewards)) and not result.reward
        for history, reward in zip(histories, result.rewards, strict=True):
            history.earned.append(reward)
        shown = result.observation
        if result.done or result.truncated:
            assert shown.seat == mover and len(result.seat_metrics) == seats
            assert result.metrics == result.seat_metrics[0]
            for history, figures in zip(histories, result.seat_metrics, strict=True):
                history.metrics = dict(figures)
            low, high = make().reward_range or (-math.inf, math.inf)
            assert all(low <= history.return_ <= high for history in histories)
            return histories, result


def reconstructed(
    make: Callable[[], Environment], seed: int, task: dict[str, Any], histories: list[History]
) -> StepResult:
    """Plays the session again from the seats' histories alone: each turn is the next of the seat that is
    named, and each sees and earns what it did before. Returns the last result."""
    environment, shown = begun(make, seed, task, len(histories))
    left = [list(history.turns) for history in histories]
    for step in range(sum(map(len, left))):
        seen, action = left[shown.seat].pop(0)
        assert shown.text == seen
        result = environment.step(action)
        assert list(result.rewards) == [history.earned[step] for history in histories]
        shown = result.observation
    assert not any(left) and (result.done or result.truncated)
    return result
