"""A table of records notices every change, however it is made."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.record_table import RecordTable
from services.scheduler.state.tickets import Issue
from services.scheduler.state.workers import Incarnations, WorkerRecord


def changed(table: RecordTable[str, int]) -> dict[str, int | None]:
    return dict(table.take_changed())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda table: table.__setitem__("b", 2), {"b": 2}),
        (lambda table: table.__delitem__("a"), {"a": None}),
        (lambda table: table.pop("a"), {"a": None}),
        (lambda table: table.pop("z", None), {}),
        (lambda table: table.popitem(), {"a": None}),
        (lambda table: table.clear(), {"a": None}),
        (lambda table: table.update(a=3, b=4), {"a": 3, "b": 4}),
        (lambda table: table.setdefault("b", 5), {"b": 5}),
        (lambda table: table.setdefault("a", 5), {}),
        (lambda table: table.__ior__({"c": 6}), {"c": 6}),
        (lambda table: table.set_unstored("a", 7), {}),
    ],
)
def test_every_way_of_changing_it_is_noticed(
    change: Callable[[RecordTable[str, int]], object], expected: dict[str, int | None]
) -> None:
    table: RecordTable[str, int] = RecordTable()
    table["a"] = 1
    assert changed(table) == {"a": 1}
    change(table)
    assert changed(table) == expected
    assert changed(table) == {}


@pytest.mark.parametrize("kind", [EvaluationRecord, Issue, Incarnations, WorkerRecord])
def test_records_of_tables_cannot_be_changed_in_place(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.frozen
