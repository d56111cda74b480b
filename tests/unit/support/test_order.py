"""The order in which workers get the tests."""

from __future__ import annotations

import pytest

from tests.support.order import LONGEST, longest_first
from tests.support.paths import ROOT


def file_of(item: tuple[str, int]) -> str:
    return item[0]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_part_begins_with_long_tests_and_nothing_is_lost(workers: int):
    files = [f"test_{number}.py" for number in range(30)] + list(reversed(LONGEST))
    items = [(file, number) for file in files for number in range(4)]
    ordered = longest_first(items, workers, file_of)
    assert sorted(ordered) == sorted(items)
    size = len(items) // workers
    for worker in range(workers):
        assert ordered[worker * size] == (LONGEST[worker], 0)
    for file in files:
        assert [number for name, number in ordered if name == file] == list(range(4))


def test_few_tests_are_all_run():
    items = [(LONGEST[0], number) for number in range(5)] + [("test_other.py", 0)]
    assert longest_first(items, 2, file_of) == items
    assert longest_first([], 2, file_of) == []


def test_each_of_the_longest_is_there():
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(LONGEST) <= there
