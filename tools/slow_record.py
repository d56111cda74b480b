"""The record of slow tests as values: which tests are slow, what their entries say, whose turn it is.

tools/slow_tests.py runs them and says what an entry is.
"""

from __future__ import annotations

import ast
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD_PATH = "tests/slow_tests.json"
RECORD = ROOT / RECORD_PATH
# An entry may be this many landings old.
LANDINGS = 4
# Beginnings of the ids of tests that run one at a time, and why. Whole folders, files or tests.
ALONE = {
    "tests/browser/": "a browser, which draws with all cores",
    "tests/containers/": "containers share names, ports and the machine's memory",
    "tests/drills/test_slurm.py": "a cluster of this machine's own, which ends its nodes' processes",
    "tests/drills/test_ray.py": "a cluster of this machine's own, whose nodes are killed",
    "tests/integration/test_bench_": "benchmarks bound or compare rates",
    "tests/integration/test_memory_peaks.py::test_the_peak_of_several": "peaks depend on who waits for whom",
    "tests/unit/benchmarks/test_profile.py": "all has to be measured within minutes",
    "tests/integration/test_readme_path.py": "a training on all cores, to a result",
    "tests/contract/test_transport.py::test_idle_costs_nothing": "processor time is bounded",
}
# Slow tests that CI runs at every landing (`make test-browser`): no turn has them.
EVERY_LANDING = "tests/browser/"
# Seconds of the turn that CI runs at each landing.
TURN_S = 25 * 60.0
# How many of the others run side by side.
WORKERS = 2
# Assumed of a test that never ran.
UNKNOWN_S = 60.0

Entries = dict[str, dict[str, Any]]


def is_slow(node: ast.AST) -> bool:
    """Returns whether `pytest.mark.slow` stands anywhere in the expression."""
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
        if "slow" in (source := file.read_text(encoding="utf-8"))
        for name in slow_in(source)
    )


def read(file: Path = RECORD) -> tuple[int, Entries]:
    """The counter of landings, and each test's entry."""
    record = json.loads(file.read_text(encoding="utf-8"))
    return int(record["landing"]), record["tests"]


def write(landing: int, entries: Mapping[str, Mapping[str, Any]], file: Path = RECORD) -> None:
    record = {"landing": landing, "tests": {name: entries[name] for name in sorted(entries)}}
    whole = file.with_suffix(".new")
    whole.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    whole.replace(file)


def faults(landing: int, entries: Mapping[str, Mapping[str, Any]], tests: Iterable[str]) -> Iterator[str]:
    """The faults of the record: tests that never passed, entries without a test, entries too old."""
    tests = set(tests)
    for name in sorted(tests):
        if not entries.get(name, {}).get("commit"):
            yield f"{name} has never passed; run it with: python tools/slow_tests.py run --only {name}"
    for name in sorted(entries.keys() - tests):
        yield f"{name} is no slow test any more; remove its entry"
    for name in sorted(tests & entries.keys()):
        age, skipped = landing - int(entries[name]["landing"]), entries[name].get("skipped", "")
        if age > LANDINGS:
            reason = f" (skipped since: {skipped})" if skipped else ""
            yield (
                f"{name} ran {age} landings ago{reason}, at most {LANDINGS} are allowed; run make test-slow"
            )
    for start in ALONE:
        if not any(name.startswith(start) for name in tests):
            yield f"{start} is the beginning of no slow test; remove it from ALONE"
    if (count := len(turns(entries, tests, TURN_S))) > LANDINGS + 1:
        yield (
            f"the slow tests fill {count} turns of {TURN_S / 60:.0f} minutes, "
            f"at most {LANDINGS + 1} are allowed; shorten the longest or raise TURN_S"
        )


def elsewhere(
    entries: Mapping[str, Mapping[str, Any]], reaches: Callable[[str], bool], trees: Iterable[str]
) -> Iterator[str]:
    """A line for each commit that entries name and HEAD does not descend from, unless the tree that was
    tested is that of a commit that it does descend from."""
    trees = set(trees)
    named = Counter(
        str(entry["commit"])
        for entry in entries.values()
        if entry["commit"] and entry.get("tree") not in trees
    )
    for commit, count in sorted(named.items()):
        if not reaches(commit):
            yield f"warning: {count} entries name {commit}, which is not in this history"


def is_alone(test: str) -> bool:
    return test.startswith(tuple(ALONE))


def cost_s(entries: Mapping[str, Mapping[str, Any]], test: str) -> float:
    """Returns the seconds that a test adds to the length of a run, by what it took last time."""
    seconds = float(entries.get(test, {}).get("seconds") or UNKNOWN_S)
    return seconds if is_alone(test) else seconds / WORKERS


def turns(entries: Mapping[str, Mapping[str, Any]], tests: Iterable[str], seconds: float) -> list[list[str]]:
    """The tests of each turn: all are dealt out to as few turns of `seconds` as hold them, the longest first.
    Each landing takes the next turn, so each test has run after as many landings as there are turns, though
    nobody writes down that it ran. Those of EVERY_LANDING have no turn."""
    dealt: list[list[str]] = []
    left: list[float] = []
    rest = (name for name in tests if not name.startswith(EVERY_LANDING))
    for name in sorted(rest, key=lambda name: (-cost_s(entries, name), name)):
        cost = cost_s(entries, name)
        place = next((number for number, spare in enumerate(left) if cost <= spare), len(dealt))
        if place == len(dealt):
            dealt.append([])
            left.append(seconds)
        dealt[place].append(name)
        left[place] -= cost
    return dealt


def turn_of(landing: int, dealt: Sequence[list[str]]) -> list[str]:
    """Returns the tests whose turn it is at a landing."""
    return dealt[landing % len(dealt)] if dealt else []


def ordered(entries: Mapping[str, Mapping[str, Any]], tests: Iterable[str]) -> list[str]:
    """The tests file by file, the longest file first: two workers end at nearly the same time."""
    files: dict[str, list[str]] = defaultdict(list)
    for name in sorted(tests):
        files[name.partition("::")[0]].append(name)

    def length_s(names: list[str]) -> float:
        return sum(cost_s(entries, name) for name in names)

    return [name for names in sorted(files.values(), key=length_s, reverse=True) for name in names]


def renewed(entries: Entries, lines: Iterable[Mapping[str, Any]], *, landing: int, **tested: str) -> Entries:
    """The entries after a run, or after a part of one.

    lines: of tests/support/slow_results.py. tested: the commit, its tree and the date of the run.
    """
    collected: dict[str, int] = {}
    by_test: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        if "collected" in line:
            collected |= line["collected"]
        else:
            by_test[str(line["test"])].append(line)
    result = dict(entries)
    for name, runs in by_test.items():
        outcomes = Counter(str(run["outcome"]) for run in runs)
        count = collected.get(name, 0)
        nothing = {"commit": None, "tree": None, "date": None, "seconds": None, "landing": landing}
        before = entries.get(name, nothing)
        if outcomes["passed"] == count:
            seconds = round(sum(float(run["seconds"]) for run in runs), 1)
            result[name] = {**tested, "seconds": seconds, "landing": landing}
        elif outcomes["skipped"] and not outcomes["failed"]:
            reason = next(str(run["reason"]) for run in runs if run["outcome"] == "skipped")
            result[name] = {**before, "skipped": f"{outcomes['skipped']} of {count}: {reason}"}
        else:
            result[name] = before
    return result
