"""Keeps a record of when each slow test ran last: tests/slow_tests.json.

    python tools/slow_tests.py check               each has an entry, none is too old (`make check`)
    python tools/slow_tests.py run                 runs all and renews their entries (`make test-slow`)
    python tools/slow_tests.py run --minutes 15    those that ran longest ago, as many as fit (`.ci/run`)
    python tools/slow_tests.py landing             raises the counter of landings, once before each landing

The default suite leaves tests marked `slow` out, so without a record nobody would know whether they still
pass. An entry names the commit and the date of the last run in which every parameter of the test passed,
how long it took, and the landing at which that was. A test that was skipped keeps its commit and date and
says why it was skipped; one that failed keeps its entry, and the run's exit code is 1. Entries are written
only on a clean tree: what a changed tree does says nothing about a commit.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "slow_tests.json"
# An entry may be this many landings old.
LANDINGS = 4
# Assumed of a test that never ran.
UNKNOWN_S = 60.0
# What a bounded run may take beyond what its tests took last time.
SLACK = 2.0
# What pytest gets to tear down after Ctrl-C.
STOP_S = 60.0

Entries = dict[str, dict[str, Any]]


def is_slow(node: ast.AST) -> bool:
    """Whether `pytest.mark.slow` stands anywhere in the expression."""
    return any(isinstance(part, ast.Attribute) and part.attr == "slow" for part in ast.walk(node))


def slow_in(source: str) -> list[str]:
    """Names of the tests of one module that are slow or have parameters that are.

    A class that is marked stands as CLASS::METHOD for each of its test methods. A class without any
    inherits unittest's `runTest`, as Hypothesis' state machines do.
    """
    module = ast.parse(source)
    whole = any(
        isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)
        and is_slow(node.value)
        for node in module.body
    )
    names: list[str] = []
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (
            whole or any(is_slow(decorator) for decorator in node.decorator_list)
        ):
            names += _tests_of(node)
    return names


def _tests_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[str]:
    if not isinstance(node, ast.ClassDef):
        return [node.name] if node.name.startswith("test_") else []
    if not node.name.startswith("Test"):
        return []
    methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [f"{node.name}::{name}" for name in methods if name.startswith("test_")] or [
        f"{node.name}::runTest"
    ]


def slow_tests(root: Path = ROOT) -> list[str]:
    """Node ids of all slow tests, without parameters, sorted."""
    return sorted(
        f"{file.relative_to(root).as_posix()}::{name}"
        for file in (root / "tests").rglob("test_*.py")
        for name in slow_in(file.read_text(encoding="utf-8"))
    )


def read(file: Path = RECORD) -> tuple[int, Entries]:
    """The counter of landings, and each test's entry."""
    record = json.loads(file.read_text(encoding="utf-8"))
    return int(record["landing"]), record["tests"]


def write(landing: int, entries: Mapping[str, Mapping[str, Any]], file: Path = RECORD) -> None:
    record = {"landing": landing, "tests": {name: entries[name] for name in sorted(entries)}}
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def faults(landing: int, entries: Mapping[str, Mapping[str, Any]], tests: Iterable[str]) -> Iterator[str]:
    """The faults of the record: tests without an entry, entries without a test, entries too old."""
    tests = set(tests)
    for name in sorted(tests - entries.keys()):
        yield f"{name} has no entry; run it with: python tools/slow_tests.py run --only {name}"
    for name in sorted(entries.keys() - tests):
        yield f"{name} is no slow test any more; remove its entry"
    for name in sorted(tests & entries.keys()):
        age = landing - int(entries[name]["landing"])
        if age > LANDINGS:
            yield f"{name} ran {age} landings ago, at most {LANDINGS} are allowed; run make test-slow"


def oldest(
    entries: Mapping[str, Mapping[str, Any]], tests: Iterable[str], seconds: float, seed: str = ""
) -> list[str]:
    """The tests that ran longest ago, as many as fit into `seconds` by what each took last time; at least
    one. seed: orders tests of the same landing, so that another commit gets others of them."""

    def age(name: str) -> tuple[int, str]:
        landing = int(entries.get(name, {}).get("landing", -1))
        return landing, hashlib.sha256(f"{seed} {name}".encode()).hexdigest()

    chosen: list[str] = []
    for name in sorted(tests, key=age):
        cost = float(entries.get(name, {}).get("seconds") or UNKNOWN_S)
        if chosen and cost > seconds:
            continue
        chosen.append(name)
        seconds -= cost
    return chosen


def renewed(
    entries: Entries, lines: Iterable[Mapping[str, Any]], *, landing: int, commit: str, date: str
) -> Entries:
    """The entries after a run. lines: of tests/support/slow_results.py, one for each set of parameters."""
    by_test: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        by_test[str(line["test"])].append(line)
    result = dict(entries)
    for name, runs in by_test.items():
        outcomes = {str(run["outcome"]) for run in runs}
        seconds = round(sum(float(run["seconds"]) for run in runs), 1)
        before = entries.get(name, {"commit": None, "date": None, "seconds": None, "landing": landing})
        if "failed" in outcomes:
            result[name] = {**before}
        elif "passed" in outcomes:
            result[name] = {"commit": commit, "date": date, "seconds": seconds, "landing": landing}
        else:
            reason = next(str(run["reason"]) for run in runs)
            result[name] = {**before, "landing": landing, "skipped": reason}
    return result


def git(*arguments: str) -> str:
    """Standard output of a git command in the repository; "" outside of one."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False, timeout=30
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def pytest_within(command: list[str], environment: Mapping[str, str], limit_s: float | None) -> int:
    """pytest's exit code, 1 if it did not end in time. Ctrl-C ends it as its own does, so that nothing is
    left."""
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            print(f"slow tests: stopped after {limit_s:.0f} s; what had ended by then counts", flush=True)
            process.send_signal(signal.SIGINT)
        except KeyboardInterrupt:
            pass  # the terminal has told pytest, too
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
    return 1


def run(only: list[str], minutes: float, keep: bool) -> int:
    """Runs slow tests and renews their entries. Returns pytest's exit code."""
    landing, entries = read()
    tests = only or slow_tests()
    limit_s = None
    if minutes:
        tests = oldest(entries, tests, minutes * 60, git("rev-parse", "HEAD"))
        limit_s = minutes * 60 * SLACK
        print(f"slow tests: the {len(tests)} that ran longest ago", flush=True)
    clean = not git("status", "--porcelain", "--untracked-files=no")
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory) / "results.jsonl"
        results.touch()
        command = [sys.executable, "-m", "pytest", "-m", "slow", "-rs", "-p", "tests.support.slow_results"]
        environment = {**os.environ, "EARL_SLOW_RESULTS": str(results)}
        code = pytest_within([*command, *tests], environment, limit_s)
        lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    if not keep:
        return code
    if not clean:
        print("slow tests: uncommitted changes, so the record stays as it is; commit and run again")
        return code
    commit, date = git("rev-parse", "--short=12", "HEAD"), time.strftime("%Y-%m-%d", time.gmtime())
    write(landing, renewed(entries, lines, landing=landing, commit=commit, date=date))
    print(f"slow tests: {RECORD.relative_to(ROOT)} is renewed; commit it")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="look for tests without an entry and entries that are too old")
    commands.add_parser("landing", help="raise the counter of landings")
    runs = commands.add_parser("run", help="run slow tests and renew their entries")
    runs.add_argument("--minutes", type=float, default=0.0, help="only the oldest, as many as fit")
    runs.add_argument("--only", nargs="+", default=[], metavar="TEST", help="only these")
    runs.add_argument("--no-record", action="store_true", help="leave the record as it is")
    given = parser.parse_args()
    if given.command == "run":
        return run(given.only, given.minutes, keep=not given.no_record)
    landing, entries = read()
    if given.command == "landing":
        write(landing + 1, entries)
        return 0
    wrong = list(faults(landing, entries, slow_tests()))
    print("\n".join([*wrong, f"slow tests: {len(entries)} entries, {len(wrong)} findings"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
