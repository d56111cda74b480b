"""The order of the default tests: every worker begins with long ones, so that none ends alone with one.

`--dist worksteal` gives each worker one part of the list, in its order, and later moves tests from the end of
the longest part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

# Files of the longest tests, the longest first (`make test` lists them at its end).
LONGEST = (
    "test_killed_in_mid_switch.py",
    "test_exact_resume.py",
    "test_stack_run.py",
    "test_transport_death.py",
    "test_stack_secure.py",
    "test_trainer_layouts.py",
    "test_rollout_worker.py",
    "test_trainer_run.py",
    "test_old_run_directory.py",
    "test_stack_mixture.py",
    "test_engine_life.py",
    "test_trainer_launch.py",
)
Item = TypeVar("Item")


def longest_first(items: Sequence[Item], workers: int, file_of: Callable[[Item], str]) -> list[Item]:
    """The same items: parts of equal length, each with its share of LONGEST's files first, and then the rest.

    Items of a file stay together and in their order.
    """
    long = [[item for item in items if file_of(item) == file] for file in LONGEST]
    rest = iter([item for item in items if file_of(item) not in LONGEST])
    size = len(items) // workers
    ordered: list[Item] = []
    for worker in range(workers):
        part = [item for file in long[worker::workers] for item in file]
        room = max(0, size - len(part)) if worker < workers - 1 else len(items)
        ordered += [*part, *(item for _, item in zip(range(room), rest, strict=False))]
    return ordered
