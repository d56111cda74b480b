"""The results of benchmarks/results/, and expressions over their figures.

A source names results:

    newcomer                      the newest result of a benchmark that has every key asked for
    control-20261122-145958       exactly this one
    control-*                     all of the series, oldest first
    a, b                          several of the above

An expression is a path into one result, or arithmetic over paths in braces:

    runs.*.win_rate               every element's win_rate, as a list
    runs.seed=2.win_rate          of the element whose seed is 2
    {drill.ledger.trained} / {drill.seconds} / {rate}
    median({runs.*.seconds})      functions: min, max, median, mean, sum, len, abs
    @date, @commit, @result, @machine
"""

from __future__ import annotations

import ast
import json
import operator
import re
import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NOTES = ROOT / "benchmarks" / "record" / "notes.toml"

NAMED = re.compile(r"(?P<benchmark>.+)-(?P<day>\d{8})-(?P<time>\d{6})(?:-(?P<number>\d+))?")
# benchmarks.record.results.origin.
KIT = re.compile(r"a kit of (?P<commit>[0-9a-f]{12,40})\b")
COMMIT_DIGITS = 7
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "median": statistics.median, "mean": statistics.fmean, "sum": sum, "len": len,
    "abs": abs,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


class FigureError(Exception):
    """A marker or an expression that cannot be filled in from the results, with the reason."""


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """One file: name (without .json), figures, and what notes.toml adds about the machine."""

    name: str
    figures: Mapping[str, Any]
    machine: str

    @property
    def benchmark(self) -> str:
        return self._named["benchmark"]

    @property
    def order(self) -> tuple[str, str, int]:
        return self._named["day"], self._named["time"], int(self._named["number"] or 1)

    @property
    def date(self) -> str:
        """Day and minute, as in "2026-11-22 14:59"."""
        day, time = self._named["day"], self._named["time"]
        return f"{day[:4]}-{day[4:6]}-{day[6:]} {time[:2]}:{time[2:4]}"

    @property
    def commit(self) -> str:
        """The short commit, with "+changes" where the tree differed from it; "" if none is known."""
        head, plus, changes = measured_commit(self.figures).partition("+")
        return head[:COMMIT_DIGITS] + plus + changes

    @property
    def head(self) -> str:
        """The commit of the measured tree, whether or not the tree differed from it; "" if none is known."""
        return measured_commit(self.figures).partition("+")[0]

    @property
    def measured_code(self) -> Mapping[str, str]:
        """Git's object id of each measured file and folder; empty for results that do not keep them."""
        return self.figures.get("measured_code", {})

    @property
    def _named(self) -> re.Match[str]:
        named = NAMED.fullmatch(self.name)
        assert named is not None
        return named


def measured_commit(figures: Mapping[str, Any]) -> str:
    """The commit that a result names, or that was packed into the kit it was measured with; "" if neither."""
    if figures["commit"]:
        return str(figures["commit"])
    packed = KIT.search(figures.get("commit_unknown", ""))
    return packed["commit"] if packed else ""


class Record:
    """All results of a folder, by name. missing: those whose commits are known to be in no history."""

    def __init__(self, results: Path = RESULTS, notes: Path = NOTES) -> None:
        noted = tomllib.loads(notes.read_text(encoding="utf-8"))
        machines = noted["machines"]
        self.missing = {name for names in noted.get("missing_commits", {}).values() for name in names}
        self.results: dict[str, BenchmarkResult] = {}
        for path in sorted(results.glob("*.json")):
            if NAMED.fullmatch(path.stem):
                figures = json.loads(path.read_text(encoding="utf-8"))
                self.results[path.stem] = BenchmarkResult(path.stem, figures, _machine(figures, machines))

    def series(self, benchmark: str) -> list[BenchmarkResult]:
        """Every result of a benchmark, oldest first."""
        named = [result for result in self.results.values() if result.benchmark == benchmark]
        return sorted(named, key=lambda result: result.order)

    def select(self, source: str) -> list[BenchmarkResult]:
        """The results that a source names, oldest first; of a benchmark's name alone all of its series."""
        selected: list[BenchmarkResult] = []
        for name in (part.strip() for part in source.split(",")):
            if name in self.results:
                selected.append(self.results[name])
            elif series := self.series(name.removesuffix("-*")):
                selected += series
            else:
                raise FigureError(f"there is no result {name}")
        return selected

    def newest(self, source: str, expression: str) -> BenchmarkResult:
        """The newest of the named results that has what the expression asks for."""
        selected = self.select(source)
        for result in reversed(selected):
            if has(result, expression):
                return result
        raise FigureError(f"{selected[-1].name} lacks {' and '.join(lacking(selected[-1], expression))}")


def _machine(figures: Mapping[str, Any], machines: Mapping[str, Any]) -> str:
    if "instruction_sets" in figures["machine"]:
        machine = figures["machine"]
        return f"{machine['processor']}, {machine['cores']} cores"
    return machines["second"] if figures["commit"] in machines["second_commits"] else machines["first"]


# --- expressions ----------------------------------------------------------------------------


def evaluate(result: BenchmarkResult, expression: str, row: Any = None, row_key: str = "") -> Any:
    """The value of an expression; a path that begins with "." is within `row`. Raises FigureError."""
    expression = expression.strip()
    if expression.startswith("@"):
        return _about(result, expression, row_key)
    if "{" not in expression:
        return _value(result, expression, row)
    values: dict[str, Any] = {}

    def named(path: re.Match[str]) -> str:
        name = f"value_{len(values)}"
        values[name] = _value(result, path[1], row)
        return name

    text = re.sub(r"\{([^{}]*)\}", named, expression)
    try:
        return _computed(ast.parse(text, mode="eval").body, values)
    except (SyntaxError, TypeError, ValueError, ZeroDivisionError) as error:
        raise FigureError(f"{result.name}: {expression}: {error}") from error


def _about(result: BenchmarkResult, name: str, row_key: str) -> str:
    known = {
        "@date": result.date, "@commit": result.commit, "@result": result.name, "@machine": result.machine,
        "@key": row_key,
    }  # fmt: skip
    if name not in known:
        raise FigureError(f"{name} is none of {', '.join(known)}")
    return known[name]


def _value(result: BenchmarkResult, path: str, row: Any) -> Any:
    inside = path.startswith(".")
    values, many = walk(row if inside else result.figures, path.removeprefix("."))
    if not values or any(value is None for value in values):
        raise FigureError(f"{result.name} lacks {path}")
    return values if many else values[0]


def walk(value: Any, path: str) -> tuple[list[Any], bool]:
    """The value at a dotted path, and whether the path has a "*". None stands for a missing value."""
    values, many = [value], False
    for step in path.split(".") if path else ():
        if step == "*":
            many = True
            values = [element for value in values for element in _elements(value)]
        else:
            values = [_step(value, step) for value in values]
    return values, many


def _elements(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list) else []


def _step(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(step)
    if not isinstance(value, list):
        return None
    key, equals, expected = step.partition("=")
    if equals:
        named = (element for element in value if isinstance(element, Mapping))
        return next((element for element in named if str(element.get(key)) == expected), None)
    return value[int(step)] if step.isdigit() and int(step) < len(value) else None


def _computed(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Arithmetic of numbers, element by element where both sides are lists. Nothing else is allowed."""
    if isinstance(node, ast.Name) and node.id in values:
        return values[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return _elementwise(
            OPERATORS[type(node.op)], _computed(node.left, values), _computed(node.right, values)
        )
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_computed(node.operand, values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        return FUNCTIONS[node.func.id](*(_computed(argument, values) for argument in node.args))
    raise ValueError(f"{ast.unparse(node)} is no arithmetic of figures")


def _elementwise(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if isinstance(left, list) and isinstance(right, list):
        return [operation(a, b) for a, b in zip(left, right, strict=True)]
    if isinstance(left, list):
        return [operation(value, right) for value in left]
    return [operation(left, value) for value in right] if isinstance(right, list) else operation(left, right)


def paths(expression: str) -> Iterator[str]:
    """The paths that an expression asks for, those within a row left out."""
    named: Sequence[str] = re.findall(r"\{([^{}]*)\}", expression) or [expression.strip()]
    for path in named:
        if not path.startswith((".", "@")):
            yield path


def lacking(result: BenchmarkResult, expression: str) -> list[str]:
    def present(path: str) -> bool:
        values, _ = walk(result.figures, path)
        return bool(values) and all(value is not None for value in values)

    return [path for path in paths(expression) if not present(path)]


def has(result: BenchmarkResult, expression: str) -> bool:
    return not lacking(result, expression)


@cache
def record() -> Record:
    """The checkout's own record, read once."""
    return Record()
