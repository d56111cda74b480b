"""The draw of a curriculum: tasks that are neither solved nor hopeless come more often. Pure.

    weight of a task = FLOOR + (1 - FLOOR) * 4 p (1 - p),  p = (successes + 1) / (episodes + 2)

p is the success rate that the task's last RECENT groups suggest: 1/2 for a task that was never played. A hash
proposes a task, and another one accepts it with the probability of its weight. FLOOR is a weight that every
task keeps, so that each comes back. No task is drawn twice for one step while there are others.

The tasks of step b follow from the run's seed, b, and each task's successes in the steps before
b - staleness. Those are committed when the first group of step b is issued, and nothing is added to them
later. So a group that is issued again, at once or by a resumed run, has the same task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from services.scheduler.state.seeds import MASK, derive

FLOOR = 0.1
# Groups of a task that tell its success rate: older ones were played by a weaker policy.
RECENT = 2
# Steps whose tasks are remembered.
REMEMBERED = 16


class Successes(NamedTuple):
    """The outcome of a task's recent groups. thousandths: of successes, whole numbers, so that no order of
    adding matters."""

    thousandths: int = 0
    episodes: int = 0


# (label of the environment, step, number of the task) -> the task's successes in the steps before that one.
SuccessesBefore = Callable[[str, int, int], Successes]


def nothing_played(label: str, step: int, task: int) -> Successes:
    """The successes of a task in a run that has not begun."""
    return Successes()


def weight(successes: Successes) -> float:
    """The weight of a task, from FLOOR to 1."""
    rate = (successes.thousandths / 1000 + 1) / (successes.episodes + 2)
    return FLOOR + (1 - FLOOR) * 4 * rate * (1 - rate)


class Curriculum:
    """Draws the tasks of each step. It remembers those of the last steps, for they do not change."""

    def __init__(self, before: SuccessesBefore = nothing_played) -> None:
        self._before = before
        self._drawn: dict[int, list[int]] = {}

    def forget(self) -> None:
        """Steps were given up, and with them what their successes led to."""
        self._drawn.clear()

    def task(self, label: str, tasks: Sequence[int], seed: int, before: int, number: int, take: int) -> int:
        """The task of the number-th group that plays the environment in a step.

        seed: of the environment and the step. before: successes count in the steps before this one. take: 0
        for the task itself, n for its n-th substitute.
        """
        successes = partial(self._before, label, before)
        drawn = self._drawn.setdefault(seed, [])
        while len(self._drawn) > REMEMBERED:
            del self._drawn[next(iter(self._drawn))]
        while len(drawn) <= number:
            drawn.append(_draw(derive(seed, len(drawn)), tasks, set(drawn), successes))
        of_group = [drawn[number]]
        for substitute in range(1, take + 1):
            of_group.append(_draw(derive(seed, number, substitute), tasks, set(of_group), successes))
        return of_group[-1]


def _draw(
    seed: int, tasks: Sequence[int], drawn: Collection[int], successes: Callable[[int], Successes]
) -> int:
    """A task that is none of the `drawn` ones, unless all are."""
    if 2 * len(drawn) >= len(tasks):  # otherwise few proposals are in vain
        tasks = [task for task in tasks if task not in drawn] or tasks
        drawn = ()
    for proposal in count():
        task = tasks[derive(seed, "propose", proposal) % len(tasks)]
        chance = derive(seed, "accept", proposal) / (MASK + 1)
        if task not in drawn and chance < weight(successes(task)):
            return task
    raise AssertionError("a weight of FLOOR or more is accepted in the end")
