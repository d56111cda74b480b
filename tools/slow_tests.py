"""Keeps a record of when each slow test ran last: tests/slow_tests.json.

    python tools/slow_tests.py check               each has an entry, none is too old (`make check`)
    python tools/slow_tests.py run                 runs all and renews their entries (`make test-slow`)
    python tools/slow_tests.py run --missing       those that have not passed at this code yet
    python tools/slow_tests.py run --turn          those whose turn it is at this landing (`.ci/run`), none of
                                                   tests/browser, which CI runs at every landing
    python tools/slow_tests.py landing             raises the counter of landings, once before each landing

The default suite leaves tests marked `slow` out, so without a record nobody would know whether they still
pass. An entry names the commit, its tree and the date of the last run in which every parameter of the test
passed, how long it took, and the landing at which that was. A test that was skipped, or of which parameters
were, keeps its entry, which ages, and says why; one that failed or did not end keeps its entry as it is, and
the run's exit code is not 0. Entries are written during the run, on a clean tree only: what a changed
tree does says nothing about a commit.

Tests run two side by side, a file's one after the other; those of ALONE follow, one at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.git_command import git_if_any
from tools.slow_record import (
    RECORD_PATH,
    ROOT,
    TURN_S,
    WORKERS,
    elsewhere,
    faults,
    is_alone,
    ordered,
    read,
    renewed,
    slow_tests,
    turn_of,
    turns,
    write,
)
from tools.staleness import leads_to_head

# More commits than any landing has had: the counter was forgotten.
LANDING_COMMITS = 200
# Beside another a test takes longer: those that name no bound get twice pytest's.
PAIRED = ("-n", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder", "--timeout", "240")
# What a bounded run may take beyond what its tests took last time.
SLACK = 2.0
# How often the entries of a run are written.
POLL_S = 1.0
# What pytest gets to tear down after Ctrl-C.
STOP_S = 60.0
INTERRUPTED = 130


def of_this_code() -> Callable[[Mapping[str, Any]], bool]:
    """Returns a test of whether an entry's tree is HEAD's, but for the record itself."""

    @cache
    def same(tree: str) -> bool:
        command = ["git", "-C", str(ROOT), "diff", "--quiet", tree, "HEAD", "--", ".", f":!{RECORD_PATH}"]
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0

    return lambda entry: bool(entry.get("tree")) and same(entry["tree"])


def raised_before() -> int:
    """Returns how many commits came since the one that raised the counter of landings last."""
    raised = git_if_any(ROOT, "log", "-1", "--format=%H", '-G^ "landing": ', "--", RECORD_PATH)
    return int(git_if_any(ROOT, "rev-list", "--count", f"{raised}..HEAD") or 0) if raised else 0


def changed_tree() -> bool:
    """Returns whether something that is committed was changed, but for the record."""
    return bool(
        git_if_any(ROOT, "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RECORD_PATH}")
    )


class Renewal:
    """Writes the entries of a run in progress, as its results come in; keep=False writes none.

    It stops for good when the tree is changed or another commit is checked out.
    """

    def __init__(self, results: Path, keep: bool) -> None:
        self._results, self._keep = results, keep
        self._landing, self._entries = read()
        self._size = 0
        self._tested = {
            "commit": git_if_any(ROOT, "rev-parse", "--short=12", "HEAD"),
            "tree": git_if_any(ROOT, "rev-parse", "HEAD^{tree}"),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }

    def write(self) -> None:
        if not self._keep or self._results.stat().st_size == self._size:
            return
        if changed_tree() or git_if_any(ROOT, "rev-parse", "HEAD^{tree}") != self._tested["tree"]:
            self._keep = False
            print("slow tests: uncommitted changes, so the record stays as it is; commit and run again")
            return
        text = self._results.read_text(encoding="utf-8")
        self._size = len(text.encode())
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        write(self._landing, renewed(self._entries, lines, landing=self._landing, **self._tested))


def pytest_within(
    command: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float | None,
    meanwhile: Callable[[], None] = lambda: None,
) -> int:
    """pytest's exit code, INTERRUPTED after Ctrl-C, 1 if it did not end in time. It and its workers are then
    interrupted as by Ctrl-C, so that tests end what they started. meanwhile: called again and again."""
    ends = None if limit_s is None else time.monotonic() + limit_s
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            while ends is None or time.monotonic() < ends:
                try:
                    return process.wait(POLL_S if limit_s is None else min(POLL_S, limit_s))
                except subprocess.TimeoutExpired:
                    meanwhile()
            print(f"slow tests: stopped after {limit_s:.0f} s; what had ended by then counts", flush=True)
            return 1
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and those that it started, unless it has ended."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def run(tests: list[str], limit_s: float | None, keep: bool) -> int:
    """Runs slow tests and renews their entries. Returns pytest's exit code."""
    _, entries = read()
    ends = None if limit_s is None else time.monotonic() + limit_s
    paired = ordered(entries, (name for name in tests if not is_alone(name)))
    alone = ordered(entries, filter(is_alone, tests))
    print(f"slow tests: {len(tests)} to run", flush=True)
    code = 0
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory) / "results.jsonl"
        results.touch()
        renewal = Renewal(results, keep)
        command = [sys.executable, "-m", "pytest", "-m", "slow", "-rs", "-p", "tests.support.slow_results"]
        environment = {**os.environ, "EARL_SLOW_RESULTS": str(results)}
        for arguments, names in ((PAIRED, paired), ((), alone)):
            left_s = None if ends is None else ends - time.monotonic()
            if code == INTERRUPTED or not names or (left_s is not None and left_s <= 0):
                continue
            print(f"slow tests: {len(names)} {'side by side' if arguments else 'one at a time'}", flush=True)
            ended = pytest_within([*command, *arguments, *names], environment, left_s, renewal.write)
            renewal.write()
            # A pytest that a signal ended has the negative number of the signal: its code is a shell's.
            code = max(code, ended if ended >= 0 else 128 - ended)
    if keep:
        print(f"slow tests: {RECORD_PATH} has what passed; commit it. What has not: run --missing")
    return code


def chosen_tests(given: argparse.Namespace) -> list[str]:
    """The tests that the command line of `run` asks for."""
    landing, entries = read()
    tests = given.only or slow_tests()
    if parameters := [name for name in given.only if "[" in name]:
        raise SystemExit(f"slow tests: an entry is of all parameters together: {parameters}")
    if given.missing:
        passed = of_this_code()
        tests = [name for name in tests if not passed(entries.get(name, {}))]
    if given.turn:
        tests = turn_of(landing, turns(entries, tests, TURN_S))
    return tests


def raise_landing() -> int:
    landing, entries = read()
    committed = json.loads(git_if_any(ROOT, "show", f"HEAD:{RECORD_PATH}") or '{"landing": 0}')["landing"]
    if landing != committed or raised_before() == 0:
        print(f"slow tests: the counter of landings was raised to {landing} already, for this landing")
        return 1
    write(landing + 1, entries)
    return 0


def check() -> int:
    landing, entries = read()
    wrong = list(faults(landing, entries, slow_tests()))
    if (count := raised_before()) > LANDING_COMMITS:
        wrong.append(
            f"the counter of landings was raised {count} commits ago: before a landing, type "
            "python tools/slow_tests.py landing"
        )
    trees = git_if_any(ROOT, "log", "--format=%T").split()
    warnings = elsewhere(entries, lambda commit: leads_to_head(ROOT, commit), trees)
    print("\n".join([*warnings, *wrong, f"slow tests: {len(entries)} entries, {len(wrong)} findings"]))
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="look for tests without an entry and entries that are too old")
    commands.add_parser("landing", help="raise the counter of landings")
    runs = commands.add_parser("run", help="run slow tests and renew their entries")
    runs.add_argument("--turn", action="store_true", help="only those whose turn it is at this landing")
    runs.add_argument("--only", nargs="+", default=[], metavar="TEST", help="only these")
    runs.add_argument("--missing", action="store_true", help="only those that have not passed at this code")
    runs.add_argument("--no-record", action="store_true", help="leave the record as it is")
    given = parser.parse_args()
    if given.command == "run":
        limit_s = TURN_S * SLACK if given.turn else None
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return run(chosen_tests(given), limit_s, keep=not given.no_record)
    return raise_landing() if given.command == "landing" else check()


if __name__ == "__main__":
    sys.exit(main())
