"""Compare runs: time, tokens/s, reward, contexts, episodes that failed, switches, side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from earl.cli.compare.figures import (
    Figure,
    MeasuredFigure,
    Value,
    figures,
    labels_in,
    ratio,
    result_word,
    steps,
)
from earl.cli.compare.panels import rows, side_by_side, together
from earl.cli.lib import completion
from earl.cli.lib.find_run import directory_of
from earl.cli.lib.notices import waiting
from earl.cli.lib.wrapped import print_wrapped
from earl.cli.report.data import RecordedRun, read_run
from earl.cli.report.document import document
from earl.errors import ConfigError

app = typer.Typer(add_completion=False)

# Columns that no table needs.
UNBOUNDED = 10_000

Compared = Sequence[tuple[Figure, Sequence[Value]]]


@app.command(epilog="Example: earl compare first second --html page.html")
def compare(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Names or directories of two or more runs.",
            autocompletion=completion.runs,
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a page with their charts on the same axes."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as one JSON object.")] = False,
) -> None:
    """Compare runs: time, tokens/s, reward, contexts, episodes that failed, switches, side by side.

    Ratios are to the first run. Reads the runs' directories only, also while a run is running.
    """
    names, runs = read_all([directory_of(run) for run in run_dirs])
    with waiting("computing the figures"):
        compared = [
            (figure, [figure.of(run) for run in runs])
            for figure in figures(result_word(runs), labels_in(runs))
        ]
    if html is not None:
        with waiting(f"writing {html}"):
            write(html, page(names, runs, compared))
    if as_json:
        print(json.dumps(as_object(names, runs, compared)))
    else:
        show(names, compared)


def read_all(directories: Sequence[Path]) -> tuple[list[str], list[RecordedRun]]:
    """Names that tell the runs apart, and their records.

    Raises ConfigError: fewer than two runs, one of them twice, or one that is none or has no step yet.
    """
    if len(directories) < 2:
        raise ConfigError(f"{directories[0]} is only one run", "name two or more, the baseline first")
    whole = [directory.resolve() for directory in directories]
    twice = [given for given, path in zip(directories, whole, strict=True) if whole.count(path) > 1]
    if twice:
        raise ConfigError(f"{twice[0]} is named twice", "name each run once")
    runs: list[RecordedRun] = []
    with waiting("reading runs", progress=lambda: (len(runs), len(directories))):
        for directory in directories:
            run = read_run(directory)
            if not steps(run):
                raise ConfigError(
                    f"{directory} has no training step yet (metrics.jsonl)", "compare it after its first step"
                )
            runs.append(run)
    names = [path.name for path in whole]
    alike = len(set(names)) < len(names)
    return [str(path) for path in directories] if alike else names, runs


def without_empty_rows(compared: Compared) -> Compared:
    """Returns the comparison without the rows that no run recorded."""
    return [(figure, values) for figure, values in compared if any(value is not None for value in values)]


def heads(names: Sequence[str]) -> list[str]:
    """A column a run, and behind each but the first its ratio to that."""
    first, *others = names
    return ["", first, *(head for name in others for head in (name, f"÷ {first}"))]


def cells(figure: Figure, values: Sequence[Value]) -> list[str]:
    first, *others = values
    row = [figure.title, figure.text(first)]
    for value in others:
        times = ratio(value, first)
        row += [figure.text(value), f"{times:.2f}" if times is not None else ""]
    return row


def show(names: Sequence[str], compared: Compared) -> None:
    """The table, on standard output: as wide as the terminal, or as it needs where there is none.

    Where the terminal is too narrow even for the longest words, every run gets a line below each figure.
    """
    rows = [cells(figure, values) for figure, values in without_empty_rows(compared)]
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, head in enumerate(heads(names)):
        longest = max(len(word) for row in (heads(names), *rows) for word in row[index].split() or [""])
        drawn.add_column(Text(head), justify="right" if index else "left", min_width=longest)
    for row in rows:
        drawn.add_row(*map(Text, row))
    console = Console(highlight=False)
    whole = console.options.update(max_width=UNBOUNDED)
    if not console.is_terminal:
        console.width = max(console.width, Measurement.get(console, whole, drawn).maximum)
    elif Measurement.get(console, whole, drawn).minimum > console.width:
        print_wrapped("\n".join(below_each_other(names, rows)))
        return
    console.print(drawn)


def below_each_other(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The table's rows for a narrow terminal: a figure, and below it each run's value and ratio."""
    first, *others = names
    width = max(map(len, names))
    for title, value, *rest in rows:
        yield title
        yield f"  {first:{width}}  {value}"
        for name, text, times in zip(others, rest[::2], rest[1::2], strict=True):
            yield f"  {name:{width}}  {text}{f'  ({times} x {first})' if times else ''}"


def as_object(names: Sequence[str], runs: Sequence[RecordedRun], compared: Compared) -> dict[str, Any]:
    """{"runs": [name, directory, figures, ratios to the first run, evaluations, switches,
    failure]}.

    Intervals are figures of their own, key_low and key_high; null is what was not recorded.
    """
    listed = []
    for index, (name, run) in enumerate(zip(names, runs, strict=True)):
        numbers: dict[str, Any] = {}
        for figure, values in compared:
            numbers |= plain(figure.key, values[index])
        listed.append(
            {
                "name": name,
                "directory": str(run.directory),
                "figures": numbers,
                "ratios": {
                    figure.key: ratio(values[index], values[0]) for figure, values in compared if index
                },
                "evaluations": [
                    {key: value for key, value in evaluation.items() if key not in ("rewards", "wins")}
                    for evaluation in run.evaluations
                ],
                "switches": list(run.switches),
                "failure": run.failure or None,
            }
        )
    return {"runs": listed}


def plain(key: str, value: Value) -> dict[str, Any]:
    if not isinstance(value, MeasuredFigure):
        return {key: value}
    bounds = {f"{key}_low": value.low, f"{key}_high": value.high} if value.low is not None else {}
    return {key: value.value, **bounds}


def page(names: Sequence[str], runs: Sequence[RecordedRun], compared: Compared) -> str:
    """The figures, charts of all runs together, and their own charts side by side, as one file."""
    drawn = [side_by_side(row, names) for row in rows(runs)]
    data = {
        "title": " and ".join(names),
        "heads": heads(names),
        "figures": [cells(figure, values) for figure, values in without_empty_rows(compared)],
        "together": list(together(runs, names)),
        "rows": [row for row in drawn if row is not None],
    }
    replaced = [('<h1 id="name">Compare</h1>', f'<h1 id="name">{escape(data["title"])}</h1>')]
    return document("comparison.html", "comparison", data["title"], data, replaced)


def write(path: Path, text: str) -> None:
    """Writes the text to the path. Raises ConfigError if it cannot."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--html {path} cannot be written: {error.strerror}", "name a file in an existing directory"
        ) from error
    sys.stderr.write(f"page: {path}\n")
