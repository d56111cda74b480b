"""The task as an environment: one turn, the answer is the action."""

from __future__ import annotations

from typing import Any

from benchmarks.e2e import task as sorting
from earl.env.base import Environment, Observation, StepResult


class Sort(Environment):
    """A list of numbers to be written in order; the episode's seed is the question's."""

    name = "benchmarks/sort"
    description = "Write the numbers in ascending order."
    reward_range = (0.0, 1.0)
    blocking = False

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        self._seed = seed
        return Observation(sorting.question(seed))

    def step(self, action: str) -> StepResult:
        reward = sorting.score(self._seed, action)
        return StepResult("", reward, done=True, metrics={"win": float(reward == 1.0)})
