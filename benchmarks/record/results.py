"""Saves results: one JSON file for each, never overwritten, with the commit and the machine it is of."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.record import checkout as checkouts
from benchmarks.record.checkout import Checkout, UncommittedTree, checkout, in_record, require_committed
from benchmarks.record.execution import CURRENT, Execution
from benchmarks.record.machine import described
from benchmarks.record.measured import measured_code, object_ids, of_benchmark
from earl.obs.machine import installed


def publish(name: str, figures: dict[str, Any], results: Path, *, as_json: bool) -> Path:
    """Saves the figures as results/NAME-TIME.json, with the commit and the machine that they are of.

    results: a directory, made if it is not there; no file of it is ever overwritten. Returns the file's path.
    Raises UncommittedTree, after printing the result, if the directory is the record and the working tree
    differs from its commit, or was changed while the benchmark ran.
    """
    execution = CURRENT.get() or Execution.begin()
    state = over_time(execution.state, checkout())
    result = {
        "benchmark": name,
        "commit": state.label,
        **({} if state.commit else {"commit_unknown": f"EARL {installed('earl')}, {origin(checkouts.ROOT)}"}),
        **identity(name, state),
        "machine": described(),
        "load_before": execution.load,
        "wall_s": round(execution.seconds, 1),
        **figures,
    }
    if in_record(results):
        try:
            require_committed(state)
        except UncommittedTree:
            print(json.dumps(result))
            raise
    path = created(results, name, json.dumps(result, indent=1) + "\n")
    execution.saved.append(path)
    sys.stderr.write(f"written: {path}\n")
    if as_json:
        print(json.dumps(result))
    return path


def origin(root: Path) -> str:
    """Names the origin of files without git: beside those of a kit, tools/gpu_kit.py writes their commit."""
    try:
        return f"a kit of {(root / 'COMMIT').read_text(encoding='ascii').strip()}"
    except OSError:
        return "not of a git checkout"


def identity(name: str, state: Checkout) -> dict[str, dict[str, str]]:
    """measured_code: git's object id of each path that the benchmark measures.

    Empty where the measured code is not that of a commit, and for a benchmark that names no paths.
    """
    if state.commit is None or state.changes:
        return {}
    paths = of_benchmark(name, measured_code(checkouts.ROOT))
    ids = object_ids(checkouts.ROOT, paths, state.commit)
    return {"measured_code": ids} if ids else {}


def over_time(first: Checkout, last: Checkout) -> Checkout:
    """The state that a result is of, from those at the start and at the end of the benchmark.

    Processes that are started late run the code of that moment, so whatever differed from the first commit
    at either time counts as a change, a new commit too.
    """
    if first == last:
        return first
    moved = () if first.commit == last.commit else (f"now {last.commit}",)
    return Checkout(first.commit, tuple(dict.fromkeys([*first.changes, *moved, *last.changes])))


def created(results: Path, name: str, text: str) -> Path:
    """Writes a new file results/NAME-TIME.json and returns its path; within one second -2, -3 ... follow."""
    results.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while True:
        path = results / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
            return path
        except FileExistsError:
            number += 1
