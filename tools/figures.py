"""Fills figures and pictures into README.md and docs/ from the results: `python tools/figures.py --write`.

A figure in a sentence stands between two comments, which no page shows: source; expression; format.

    <!--f newcomer; total_s; .0f-->341<!--/f-->
    <!--f selector-*; policies.earl.regret; range .3f-->0.015–0.020<!--/f-->

A source with "*" gives the values of all its results. Formats are Python's (percent with a space before the
sign); before them "range" (least–most), "list" ("a, b and c"), "first" or "last" where values are several.

A table of a series has a row for each result, or for each element of a list in it:

    <!--table control-*
    where tickets_per_s
    rows runs.*
    measured = @date
    p99, ms = lease_p99_ms; .1f; <= 50
    seed = ?.seed
    -->
    ...
    <!--/table-->

A line `header = expression; format; goal` makes a column; a value that misses its goal is marked as missed.
An expression that begins with "?" may be absent. `where` leaves out results that lack a key, or have another
value of it (`where engine=torch`). With a line `may be empty` a table without rows says so. Of sources and
expressions tools/results.py tells, of pictures tools/result_pictures.py.

Without --write nothing is changed: a figure that differs from the record is printed as `file:line: what`, a
picture that differs as `file: what`, and the exit code is 1. So it is if a result names a commit that does
not lead to HEAD, unless benchmarks/record/notes.toml lists it or the git history is not there. Results whose
measured code has changed much are listed, which fails nothing (tools/staleness.py), and so are starts of
benchmarks in runs.jsonl that have no end.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.record.run_log import FILE as RUNS
from benchmarks.record.run_log import unfinished
from tools import result_pictures
from tools.results import (
    RESULTS,
    ROOT,
    BenchmarkResult,
    FigureError,
    Record,
    evaluate,
    has,
    record,
    walk,
)

FIGURE = re.compile(r"<!--f (?P<spec>(?:(?!-->).)*)-->(?P<text>.*?)<!--/f-->", re.DOTALL)
TABLE = re.compile(r"<!--table (?P<spec>.*?)\n-->\n(?P<text>.*?)<!--/table-->", re.DOTALL)
MARKER = re.compile(r"<!--(?:f |table |picture |/f|/table|/picture)")
COLLECTIONS = ("range", "list", "first", "last")
GOAL = re.compile(r"(?P<relation><=|>=|<|>|==)\s*(?P<bound>-?[\d.]+)")
SIGNS = {"<=": "≤", ">=": "≥", "<": "<", ">": ">", "==": ""}
ABSENT = "–"
# A table whose rows no result has yet says so instead of being an error.
MAY_BE_EMPTY = "may be empty"
EMPTY = "\nNo result has this yet.\n\n"


def pages(root: Path = ROOT) -> list[Path]:
    """The Markdown files that state measured figures."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


@dataclass(slots=True)
class Page:
    """One Markdown file with its markers filled in: text, faults as (line, what), results that it shows."""

    path: Path
    text: str = ""
    faults: list[tuple[int, str]] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)


def fill(path: Path, known: Record) -> Page:
    """Fills every marker of a page; a fault for each that differs from the record or cannot be filled in."""
    before = path.read_text(encoding="utf-8")
    page = Page(path)
    blocks = {match.start(): match for pattern in FILLED for match in pattern.finditer(before)}
    spans = [match.span() for match in blocks.values()]
    for marker in MARKER.finditer(before):
        if not any(start <= marker.start() < end for start, end in spans):
            page.faults.append((line_of(before, marker.start()), "a marker without its other half"))
    done = 0
    for start in sorted(blocks):
        match = blocks[start]
        try:
            text = FILLED[match.re](match["spec"], known, page)
        except FigureError as error:
            page.faults.append((line_of(before, start), str(error)))
            continue
        if text != match["text"]:
            page.faults.append((line_of(before, start), difference(match["text"], text)))
        page.text += before[done : match.start("text")] + text
        done = match.end("text")
    page.text += before[done:]
    return page


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def difference(stated: str, measured: str) -> str:
    """A page's text and the record's, side by side: for a table the first line that differs."""
    pairs = list(zip(stated.split("\n"), measured.split("\n"), strict=False))
    first = next((pair for pair in pairs if pair[0] != pair[1]), ("fewer or more lines", "a whole table"))
    return (
        f"states {first[0].strip()!r}, the record has {first[1].strip()!r} (python tools/figures.py --write)"
    )


# --- a figure in a sentence -----------------------------------------------------------------


def figure(spec: str, known: Record, page: Page) -> str:
    """The text of `source; expression; format`."""
    parts = [part.strip() for part in spec.split(";")]
    if len(parts) not in (2, 3):
        raise FigureError(f"{spec!r} is not source; expression; format")
    source, expression, form = (*parts, "")[:3]
    if "*" in source or "," in source:
        selected = [result for result in known.select(source) if has(result, expression)]
        if not selected:
            raise FigureError(f"no result of {source} has {expression}")
        values = [evaluate(result, expression) for result in selected]
        value: Any = [element for each in values for element in (each if isinstance(each, list) else [each])]
    else:
        selected = [known.newest(source, expression)]
        value = evaluate(selected[0], expression)
    page.shown |= {result.name for result in selected}
    return formatted(value, form)


def formatted(value: Any, form: str) -> str:
    """A value as text; see the module for formats. Raises FigureError."""
    collection, _, rest = form.partition(" ")
    if collection not in COLLECTIONS:
        collection, rest = "", form
    if isinstance(value, list) and collection in ("first", "last"):
        value, collection = value[0 if collection == "first" else -1], ""
    if isinstance(value, list) != bool(collection):
        raise FigureError(
            f"{value!r} has no format {form!r}: range, list, first and last are for several values"
        )
    try:
        if not isinstance(value, list):
            return scalar(value, rest)
        if collection == "range":
            return ranged(value, rest)
        texts = [scalar(element, rest) for element in value]
    except (TypeError, ValueError) as error:
        raise FigureError(f"{value!r} has no format {form!r}: {error}") from error
    return " and ".join([*([", ".join(texts[:-1])] if texts[1:] else []), texts[-1]])


def scalar(value: Any, form: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and not form:
        return f"{value:g}"
    text = format(value, form)
    if re.fullmatch(r"-[0.]+%?", text):  # no negative zero
        text = text[1:]
    return f"{text[:-1]} %" if form.endswith("%") else text


def ranged(values: list[Any], form: str) -> str:
    """ "10–14 %", or one value where least and most read alike."""
    least, most = scalar(min(values), form), scalar(max(values), form)
    if least == most:
        return least
    joint = " to " if least.startswith("-") or most.startswith("-") else "–"
    return f"{least.removesuffix(' %')}{joint}{most}"


# --- a table of a series --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table marker: `header = expression; format; goal`."""

    header: str
    expression: str
    form: str
    goal: re.Match[str] | None
    optional: bool

    @classmethod
    def of(cls, line: str) -> TableColumn:
        header, equals, rest = line.partition(" = ")
        parts = [part.strip() for part in rest.split(";")]
        goal = GOAL.fullmatch(parts[2]) if len(parts) == 3 else None
        if not equals or len(parts) > 3 or (len(parts) == 3 and goal is None):
            raise FigureError(f"{line!r} is not header = expression; format; goal")
        expression = parts[0]
        form = parts[1] if len(parts) > 1 else ""
        return cls(header.strip(), expression.removeprefix("?"), form, goal, expression.startswith("?"))

    @property
    def title(self) -> str:
        if self.goal is None:
            return self.header
        value = float(self.goal["bound"])
        bound = scalar(value, ".0%") if self.form.endswith("%") else f"{value:,g}"
        return f"{self.header} (goal {SIGNS[self.goal['relation']]} {bound})".replace("  ", " ")

    def cell(self, result: BenchmarkResult, row: Any, row_key: str, page: Path) -> str:
        if self.expression == "@result":
            return link(result, page)
        try:
            value = evaluate(result, self.expression, row, row_key)
        except FigureError:
            if self.optional:
                return ABSENT
            raise
        text = formatted(value, self.form)
        if self.expression == "@commit":
            return f"`{text}`" if text else "none"
        if self.goal is None or reached(value, self.goal):
            return text
        return f"**{text}, missed**"


def reached(value: Any, goal: re.Match[str]) -> bool:
    bound = float(goal["bound"])
    relation = goal["relation"]
    values = value if isinstance(value, list) else [value]
    return all(
        number == bound
        or (relation in ("<=", "<") and number < bound)
        or (relation in (">=", ">") and number > bound)
        for number in values
    )


def link(result: BenchmarkResult, page: Path) -> str:
    """The result's date, which leads to its file."""
    target = os.path.relpath(RESULTS / f"{result.name}.json", page.parent)
    return f"[{result.date}]({Path(target).as_posix()})"


def table(spec: str, known: Record, page: Page) -> str:
    """The rows of a table marker, with a blank line before and after."""
    lines = [line.strip() for line in spec.split("\n")]
    source, rows, empty, conditions, columns = lines[0], "", False, [], []
    for line in filter(None, lines[1:]):
        if line.startswith("rows "):
            rows = line.removeprefix("rows ")
        elif line == MAY_BE_EMPTY:
            empty = True
        elif line.startswith("where "):
            conditions.append(line.removeprefix("where "))
        else:
            columns.append(TableColumn.of(line))
    if empty and not known.series(source.removesuffix("-*")):
        return EMPTY
    selected = [result for result in known.select(source) if all(holds(result, each) for each in conditions)]
    if empty:
        selected = [result for result in selected if walk(result.figures, rows.removesuffix(".*"))[0][0]]
        if not selected:
            return EMPTY
    if not selected or not columns:
        raise FigureError(f"no result of {source} {' and '.join(conditions)}" if columns else "no columns")
    page.shown |= {result.name for result in selected}
    cells = [
        [column.cell(result, row, key, page.path) for column in columns]
        for result in selected
        for key, row in elements(result, rows)
    ]
    head = [[column.title for column in columns], ["---"] * len(columns)]
    return "\n" + "".join(f"| {' | '.join(row)} |\n" for row in [*head, *cells]) + "\n"


def holds(result: BenchmarkResult, condition: str) -> bool:
    """Returns whether a result has a key, or the value of it that `key=value` names."""
    key, equals, value = condition.partition("=")
    (present, *_), _ = walk(result.figures, key.strip())
    return str(present) == value.strip() if equals else present is not None


def elements(result: BenchmarkResult, rows: str) -> Iterable[tuple[str, Any]]:
    """The rows of one result: key and value of each element of what `rows` names; one row if it is empty."""
    if not rows:
        return [("", result.figures)]
    values, _ = walk(result.figures, rows.removesuffix(".*"))
    if isinstance(values[0], dict):
        return list(values[0].items())
    if not isinstance(values[0], list):
        raise FigureError(f"{result.name} has no list {rows}")
    return [(str(number), value) for number, value in enumerate(values[0])]


# --- a picture of a result ------------------------------------------------------------------


def picture(spec: str, known: Record, page: Page) -> str:
    """The picture of a marker with its source, with a blank line before and after; "" without a result."""
    text, result = result_pictures.embedded(spec.strip(), known, page.path.parent)
    if result is not None:
        page.shown.add(result.name)
    return text


FILLED: Mapping[re.Pattern[str], Callable[[str, Record, Page], str]] = {
    FIGURE: figure,
    TABLE: table,
    result_pictures.PICTURE: picture,
}


# --- all pages ------------------------------------------------------------------------------


def filled(known: Record, root: Path = ROOT) -> Iterator[Page]:
    for path in pages(root):
        yield fill(path, known)


def no_end(runs: Path) -> Iterator[str]:
    """A line for each start in runs.jsonl that has no end: the benchmark was killed, or is still running."""
    lines = runs.read_text(encoding="utf-8").splitlines() if runs.exists() else []
    for start in unfinished(lines):
        yield f"no end: earl bench {start['name']}, started {start['time']} at {start['commit']}"


def main(arguments: list[str]) -> int:
    from tools import staleness

    write = "--write" in arguments
    done = list(filled(record()))
    failed = 0
    for page in done:
        if write and page.text != page.path.read_text(encoding="utf-8"):
            page.path.write_text(page.text, encoding="utf-8")
            print(f"written: {page.path.relative_to(ROOT)}")
            page.faults = fill(page.path, record()).faults
        for line, fault in sorted(page.faults):
            print(f"{page.path.relative_to(ROOT)}:{line}: {fault}")
        failed += len(page.faults)
    for fault in result_pictures.check(record(), write):
        print(fault)
        failed += 1
    for fault in staleness.outside_history(record()):
        print(f"{RESULTS.relative_to(ROOT)}/{fault}")
        failed += 1
    shown = {name: [page.path for page in done if name in page.shown] for page in done for name in page.shown}
    for line in [*staleness.report(record(), shown), *no_end(RUNS)]:
        print(line)
    print(f"figures: {len(shown)} results, {failed} faults")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
