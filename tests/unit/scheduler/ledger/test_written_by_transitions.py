"""The ledger's tables are written by the ledger's own package and by nobody else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from earl.ticket_ranges import RangeSet
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state import evaluations, switch_records, tickets, workers
from tests.support.paths import ROOT

SCHEDULER = ROOT / "services" / "scheduler"
TABLES = {"tables", "_tables"}
# change_stage, change_worker and record_fact are transitions that switches call.
WRITERS = {
    "change", "move", "compact", "issue", "close_ranges", "restore", "lose",
    "setdefault", "update", "pop", "popitem", "clear",
    "set_unstored", "append", "extend", "add", "discard", "remove",
}  # fmt: skip


def names(node: ast.expr) -> list[str]:
    """The names of a chain of attributes, subscripts and calls, outermost last."""
    match node:
        case ast.Name():
            return [node.id]
        case ast.Attribute():
            return [*names(node.value), node.attr]
        case ast.Subscript():
            return names(node.value)
        case ast.Call():
            return names(node.func)
    return []


def writes(source: str) -> Iterator[int]:
    """Lines that assign to, delete from, or call a writer of something within the ledger's tables."""
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute | ast.Subscript) and TABLES & set(names(target)[:-1]):
                yield target.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            *owner, called = names(node.func)
            if called in WRITERS and TABLES & set(owner):
                yield node.lineno


def test_nobody_else_writes_to_the_tables() -> None:
    inside = SCHEDULER / "ledger"
    written = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(SCHEDULER.rglob("*.py"))
        if not path.is_relative_to(inside)
        for line in writes(path.read_text())
    ]
    assert written == []


@pytest.mark.parametrize(
    "source",
    [
        "ledger.tables.run.fence = 1",
        "self._tables.stages[stage].epoch += 1",
        "self._tables.workers[name] = worker",
        "del tables.evaluations[name]",
        "ledger.tables.move(ticket, state)",
        "self._tables.stages.setdefault(stage, record)",
        "tables.workers.set_unstored(name, worker)",
        "ledger.tables.freed.append(key)",
        "tables.kept.discard(number)",
    ],
)
def test_a_planted_write_is_found(source: str) -> None:
    assert list(writes(source))


def test_within_the_ledger_too_tickets_come_and_go_by_transitions_alone() -> None:
    tables: Any = LedgerTables()
    with pytest.raises(TypeError, match="does not support item assignment"):
        tables.tickets[1] = None
    for writer in WRITERS & set(dir(dict)):
        assert not hasattr(tables.tickets, writer) and not hasattr(tables.closed, writer)
    tables.close_ranges({"trained": RangeSet([(1, 9)])})
    with pytest.raises(TypeError, match="does not support item assignment"):
        tables.closed["trained"] = RangeSet()


@pytest.mark.parametrize(
    "record",
    [
        tickets.Ticket, tickets.Issue, workers.WorkerRecord, workers.Incarnations,
        evaluations.EvaluationRecord, switch_records.StageRecord,
    ],
)  # fmt: skip
def test_a_record_cannot_be_changed_in_passing(record: type[msgspec.Struct]) -> None:
    assert record.__struct_config__.frozen
