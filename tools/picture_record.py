"""The record of the documentation's pictures: `python tools/picture_record.py` (part of `make check`).

docs/figures/pictures.json has for each picture the commit and the date at which it was made, the run that it
shows, and git's object ids of its source then. SOURCES names that source: the code whose output the picture
shows, and the code that draws it. `make pictures` (tools/pictures.py) makes all pictures and the record.

Prints a line for each picture whose source has changed in more than LIMIT commits since, by the rule of
tools/staleness.py; such lines are warnings. A picture without a record, and a record without its picture,
are faults: exit code 1. Pictures of results have none: tools/figures.py draws them and compares them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.record.measured import object_ids  # noqa: E402  found from wherever this is run
from tools.paper_pictures import PICTURES  # noqa: E402
from tools.result_pictures import file_of  # noqa: E402
from tools.staleness import Blobs, History, changes, leads_to_head, same_content  # noqa: E402

FIGURES = Path("docs/figures")
RECORD = FIGURES / "pictures.json"
LIMIT = 20
# Files and folders that decide what a picture shows: the code that a command prints with and the code that
# draws the picture, the run file, and the program that chooses the command and its moment.
SOURCES: Mapping[str, tuple[str, ...]] = {
    "dashboard.png": (
        "earl/dashboard",
        "earl/cli/report",
        "earl/cli/lib/decisions.py",
        "earl/cli/lib/switches.py",
        "tools/dashboard_picture.py",
        "tools/pictures.py",
        "examples/growing_context.toml",
    ),
    "recording.svg": (
        "earl/cli/run/up.py",
        "earl/cli/run/detached.py",
        "earl/cli/run/stop.py",
        "earl/cli/top",
        "earl/cli/show/panels.py",
        "earl/cli/lib",
        "tools/terminal_recording.py",
        "tools/terminal_film.py",
        "examples/tictactoe.toml",
    ),
    "status.svg": (
        "earl/cli/show/status.py",
        "earl/cli/show/panels.py",
        "earl/cli/lib",
        "tools/terminal_picture.py",
        "tools/pictures.py",
        "examples/growing_context.toml",
    ),
    "terminal.svg": (
        "earl/cli/show/explain.py",
        "earl/cli/show/unexplained.py",
        "earl/cli/lib/decisions.py",
        "earl/cli/lib/splits.py",
        "earl/cli/lib/switches.py",
        "earl/cli/lib/wrapped.py",
        "tools/terminal_picture.py",
        "tools/pictures.py",
        "examples/growing_context.toml",
    ),
}


@dataclass(frozen=True, slots=True)
class PictureRecord:
    """A picture's origin. commit: 12 digits. date: UTC, as 2026-11-24. run: the run file of the run that it
    shows. source: git's object id of each of its SOURCES at that commit."""

    commit: str
    date: str
    run: str
    source: Mapping[str, str] = field(default_factory=dict)


def read(root: Path = ROOT) -> dict[str, PictureRecord]:
    """The records by the pictures' names; empty where no picture has one."""
    file = root / RECORD
    lines = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {name: PictureRecord(**line) for name, line in lines.items()}


def write(records: Mapping[str, PictureRecord], root: Path = ROOT) -> None:
    lines = {name: asdict(records[name]) for name in sorted(records)}
    (root / RECORD).write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


def note(name: str, commit: str, date: str, run: str, root: Path = ROOT) -> None:
    """Records that a picture was made at a commit."""
    source = object_ids(root, SOURCES[name], commit)
    write({**read(root), name: PictureRecord(commit, date, run, source)}, root)


def pictures(root: Path = ROOT) -> set[str]:
    """Names of the pictures of runs that are there."""
    others = {RECORD.name, *(file_of(benchmark).name for benchmark in PICTURES)}
    return {path.name for path in (root / FIGURES).iterdir()} - others


def faults(records: Mapping[str, PictureRecord], there: set[str]) -> Iterator[str]:
    """The faults of the record: each picture has an entry and sources, each entry a picture."""
    for name in sorted(there - (records.keys() & SOURCES.keys())):
        yield f"{FIGURES / name}: no record of how it was made; make it with: make pictures"
    for name in sorted(records.keys() - there):
        yield f"{RECORD}: {name} is not there; remove its entry"


def stale(records: Mapping[str, PictureRecord], root: Path = ROOT) -> list[str]:
    """A line for each picture whose source has changed in more than LIMIT commits since, or whose commit is
    not in the history."""
    there = {record.commit for record in records.values() if leads_to_head(root, record.commit)}
    history = History.since(there, root) if there else History(root, [])
    lines = []
    with Blobs(root) as blobs:
        for name in sorted(records.keys() & SOURCES.keys()):
            record = records[name]
            if record.commit not in there:
                lines.append(
                    f"stale? {name}: its commit is not in this history ({record.commit}): "
                    + same_content(record.source, root)
                )
            elif (count := changes(history, record.commit, SOURCES[name], blobs)) > LIMIT:
                lines.append(f"stale: {name}: its source has changed in {count} commits; make pictures")
    return lines


def main() -> int:
    records = read()
    wrong = list(faults(records, pictures()))
    print("\n".join([*stale(records), *wrong, f"pictures: {len(records)} records, {len(wrong)} faults"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
