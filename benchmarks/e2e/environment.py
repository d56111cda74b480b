"""The tasks as environments: one turn, the answer is the action."""

from __future__ import annotations

from typing import Any, ClassVar

from benchmarks.e2e.task import EQUAL, UNEQUAL, SortTask
from earl.env.base import Environment, Observation, StepResult


class Sort(Environment):
    """A list of numbers to be written in order; the episode's seed is the question's."""

    name = "benchmarks/sort"
    description = "Write the numbers in ascending order."
    reward_range = (0.0, 1.0)
    blocking = False
    sort: ClassVar[SortTask] = UNEQUAL

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        self._seed = seed
        return Observation(self.sort.question(seed))

    def step(self, action: str) -> StepResult:
        reward = self.sort.score(self._seed, action)
        return StepResult("", reward, done=True, metrics={"win": float(reward == 1.0)})


class EqualSort(Sort):
    """Lists of one length."""

    name = "benchmarks/sort-equal"
    sort = EQUAL


# By the name of the task: the class that a run file's environment.serve names.
ENVIRONMENTS: dict[str, type[Sort]] = {served.sort.name: served for served in (Sort, EqualSort)}
