"""The record of slow tests finds what is missing and what is old, and keeps what a run has shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.slow_results import LEFT_OUT
from tools.slow_record import (
    ALONE,
    EVERY_LANDING,
    LANDINGS,
    TURN_S,
    elsewhere,
    faults,
    ordered,
    read,
    renewed,
    slow_in,
    slow_tests,
    turn_of,
    turns,
)
from tools.slow_tests import pytest_within, run

# Variables of a pytest that is begun here: it imports the plugins that the tool uses, and no other.
PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin,pytest_timeout"}
AT = {"commit": "def", "tree": "123", "date": "2026-02-02"}


def entry(landing: int, seconds: float | None = 10.0, commit: str | None = "abc") -> dict[str, Any]:
    return {"commit": commit, "tree": "456", "date": "2026-01-01", "seconds": seconds, "landing": landing}


@pytest.fixture
def all_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test begins with what one of ALONE begins with, and none of those is without a test."""
    monkeypatch.setattr("tools.slow_record.ALONE", {"": "all"})


def test_marks_are_found_wherever_they_stand(tmp_path: Path) -> None:
    """The tool reads source; pytest, which imports it, finds the same tests."""
    source = """
import unittest
import pytest

class Machine:
    class TestCase(unittest.TestCase):
        def runTest(self): ...

@pytest.mark.slow
def test_marked(): ...

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_by_parameter(size): ...

def test_quick(): ...

@pytest.mark.slow
def helper(): ...

@pytest.mark.slow
class TestMachine(Machine.TestCase): ...

@pytest.mark.slow
class TestTwo:
    def test_one(self): ...
    def helper(self): ...
"""
    whole = "import pytest\npytestmark = [pytest.mark.slow]\ndef test_all(): ..."
    assert slow_in(whole) == ["test_all"]
    marked = ["test_marked", "test_by_parameter", "TestMachine::runTest", "TestTwo::test_one"]
    assert slow_in(source) == marked
    for name, text in (("test_parts", source), ("test_whole", whole)):
        (tmp_path / f"{name}.py").write_text(text)
    command = ["--collect-only", "-q", "-m", "slow", "-c", "/dev/null", "-p", "no:asyncio", "."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *command],
        cwd=tmp_path, env=os.environ | PLUGINS, capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    collected = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert [name.partition("[")[0] for name in collected] == [*marked, "test_all"]


def test_pytest_finds_the_same_tests(request: pytest.FixtureRequest) -> None:
    """In all files of this run, those that it leaves out included: under `make test` that is every file."""
    items = [*request.session.items, *request.config.stash.get(LEFT_OUT, [])]
    # A file of which single tests were asked for is not known as a whole.
    parts = {argument.partition("::")[0] for argument in request.config.args if "::" in argument}
    files = {item.nodeid.partition("::")[0] for item in items} - parts
    slow = {item.nodeid.partition("[")[0] for item in items if item.get_closest_marker("slow")}
    assert {name for name in slow if name.partition("::")[0] in files} == {
        name for name in slow_tests() if name.partition("::")[0] in files
    }


@pytest.mark.usefixtures("all_alone")
def test_missing_old_and_unknown_entries_are_found() -> None:
    entries = {"a": entry(5), "b": {**entry(0), "skipped": "1 of 1: no podman"}, "c": entry(5, commit=None)}
    found = list(faults(5, {**entries, "gone": entry(5)}, ["a", "b", "c", "new"]))
    assert [fault.split()[0] for fault in found] == ["c", "new", "gone", "b"]
    assert "never passed" in found[0] and "never passed" in found[1] and "no podman" in found[3]
    assert list(faults(4, {"b": entry(0)}, ["b"])) == []


def test_beginnings_of_no_test_are_found() -> None:
    assert [fault.split()[0] for fault in faults(5, {}, [])] == list(ALONE)


def test_commits_that_are_not_in_the_history_are_told() -> None:
    entries = {"a": entry(1), "b": entry(1, commit="there"), "c": entry(1), "d": entry(1, commit=None)}
    [warning] = elsewhere(entries, lambda commit: commit == "there", ["789"])
    assert "2 entries name abc" in warning
    # A commit that was put on top of others has another name, but the tree that was tested.
    assert list(elsewhere(entries, lambda commit: False, ["456"])) == []


@pytest.mark.usefixtures("all_alone")
def test_each_test_has_its_turn_and_a_turn_does_not_take_too_long() -> None:
    lengths = {"a": 900.0, "b": 440.0, "c": 450.0, "d": 390.0, "e": 10.0, "f": 440.0, "never": None}
    entries = {name: entry(3, seconds) for name, seconds in lengths.items()}
    dealt = turns(entries, lengths, 900.0)
    assert len(dealt) == 3 and dealt[0] == ["a"]
    assert turn_of(3, dealt) == turn_of(0, dealt) == dealt[0] and turn_of(5, dealt) == dealt[2]
    assert sorted(name for names in dealt for name in names) == sorted(lengths)
    assert all(sum(lengths[name] or 60.0 for name in names) <= 900.0 for names in dealt)
    assert turns({"long": entry(1, 2000.0)}, ["long"], 900.0) == [["long"]]
    assert turn_of(7, turns({}, [], 900.0)) == []
    # CI runs these at every landing.
    assert turns({}, ["tests/browser/test_page.py::test_seen"], 900.0) == []


@pytest.mark.usefixtures("all_alone")
def test_more_turns_than_landings_are_a_fault() -> None:
    names = [f"t{number}" for number in range(LANDINGS + 2)]
    entries = {name: entry(3, TURN_S) for name in names}
    assert not any("turns" in fault for fault in faults(3, entries, names[1:]))
    assert any(
        f"fill {LANDINGS + 2} turns of {TURN_S / 60:.0f} minutes" in fault
        for fault in faults(3, entries, names)
    )


def test_a_file_stays_together_and_long_ones_begin() -> None:
    entries = {"t/a::x": entry(1, 1.0), "t/b::x": entry(1, 5.0), "t/a::y": entry(1, 1.0)}
    assert ordered(entries, entries) == ["t/b::x", "t/a::x", "t/a::y"]


def test_a_run_renews_what_passed_and_nothing_else() -> None:
    def line(test: str, outcome: str) -> dict[str, Any]:
        return {"test": test, "outcome": outcome, "seconds": 2.0, "reason": "no podman"}

    counts = {"good": 2, "bad": 2, "skipped": 1, "partly": 2, "begun": 2, "new": 1}
    entries = {name: entry(1) for name in counts if name != "new"}
    entries["good"]["skipped"] = "1 of 2: no podman"
    lines = [{"collected": counts},
             line("good", "passed"), line("good", "passed"), line("bad", "passed"), line("bad", "failed"),
             line("skipped", "skipped"), line("partly", "passed"), line("partly", "skipped"),
             line("begun", "passed"), line("new", "skipped")]  # fmt: skip
    after = renewed(entries, lines, landing=7, **AT)
    assert after["good"] == {**AT, "seconds": 4.0, "landing": 7}
    assert after["bad"] == entries["bad"] and after["begun"] == entries["begun"]
    assert after["skipped"] == {**entries["skipped"], "skipped": "1 of 1: no podman"}
    assert after["partly"] == {**entries["partly"], "skipped": "1 of 2: no podman"}
    assert after["new"]["commit"] is None


def test_the_plugin_writes_each_outcome(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_good(): ...\n"
        "def test_bad(): assert 0\n"
        "def test_not(): pytest.skip('why not')\n"
    )
    results = tmp_path / "results.jsonl"
    environment = {"EARL_SLOW_RESULTS": str(results), "PYTHONPATH": str(ROOT), **PLUGINS}
    command = ["-p", "tests.support.slow_results", "-c", "/dev/null", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *command],
        cwd=ROOT, env=environment, capture_output=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    counted = {name.partition("::")[2]: count for name, count in lines.pop(0)["collected"].items()}
    assert counted == {"test_good": 1, "test_bad": 1, "test_not": 1}
    assert [(line["test"].partition("::")[2], line["outcome"]) for line in lines] == [
        ("test_good", "passed"), ("test_bad", "failed"), ("test_not", "skipped"),
    ]  # fmt: skip
    assert "why not" in lines[2]["reason"]


def test_a_run_that_takes_too_long_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert pytest_within([sys.executable, "-c", "import time; time.sleep(60)"], {}, 0.2) == 1
    assert "stopped after 0 s" in capsys.readouterr().out


@pytest.mark.parametrize(("ended", "code"), [(-9, 137), (-2, 130), (1, 1)])
def test_a_pytest_that_a_signal_ended_is_no_success(
    ended: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [ended, 0]
    monkeypatch.setattr("tools.slow_tests.pytest_within", lambda *_: codes.pop(0))
    assert run(["tests/unit/test_x.py::test_side_by_side", next(iter(ALONE))], None, keep=False) == code


class Repository:
    """A repository with the tool and two slow tests, one of them with two parameters, the other ALONE."""

    def __init__(self, path: Path) -> None:
        self.path = path
        alone = "tests/browser/test_page.py"
        tools = [
            f"tools/{name}.py"
            for name in ("slow_tests", "slow_record", "staleness", "results", "git_command")
        ]
        for name in (*tools, "tests/support/slow_results.py"):
            self.put(name, (ROOT / name).read_text(encoding="utf-8"))
        self.put("pytest.ini", "[pytest]\nmarkers = slow\npythonpath = .\n")
        self.put(".gitignore", "__pycache__\n.pytest_cache\n")
        self.put(alone, "import pytest\n@pytest.mark.slow\ndef test_seen(): ...\n")
        self.put(
            "tests/test_two.py",
            "import pytest\n@pytest.mark.slow\n@pytest.mark.parametrize('n', [1, 2])\n"
            "def test_counted(n): ...\n",
        )
        self.put("tests/slow_tests.json", '{\n "landing": 3,\n "tests": {}\n}\n')
        self.git("init", "--quiet")
        self.commit()

    def put(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        done = subprocess.run(
            ["git", *who, *arguments], cwd=self.path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "A commit")

    def tool(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "tools/slow_tests.py", *arguments]
        return subprocess.run(
            command, cwd=self.path, env=os.environ | PLUGINS, capture_output=True, text=True, check=False,
            timeout=100,
        )  # fmt: skip

    @property
    def landing(self) -> int:
        return read(self.path / "tests/slow_tests.json")[0]

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        return read(self.path / "tests/slow_tests.json")[1]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_a_run_writes_the_record_and_goes_on_with_what_is_missing(repository: Repository) -> None:
    done = repository.tool("run")
    assert done.returncode == 0, done.stdout + done.stderr
    names = ["tests/browser/test_page.py::test_seen", "tests/test_two.py::test_counted"]
    assert list(repository.entries) == names
    tree = repository.git("rev-parse", "HEAD^{tree}")
    assert all((made["tree"], made["landing"]) == (tree, 3) for made in repository.entries.values())
    # The record alone has changed: everything has passed at this code, so pytest is not even begun.
    repository.commit()
    assert "slow tests: 0 to run" in repository.tool("run", "--missing").stdout
    repository.put("tests/test_two.py", (repository.path / names[0].partition("::")[0]).read_text())
    assert "uncommitted changes" in repository.tool("run", "--missing").stdout
    assert list(repository.entries) == names


def test_the_counter_is_raised_once_between_commits(repository: Repository) -> None:
    assert repository.tool("landing").returncode == 1  # there is nothing to land
    repository.put("code", "1")
    repository.commit()
    assert [repository.tool("landing").returncode for _ in range(2)] == [0, 1]
    repository.commit()
    assert repository.landing == 4 and repository.tool("landing").returncode == 1
    repository.put("code", "2")
    repository.commit()
    assert "commits ago" not in repository.tool("check").stdout
    tool = (repository.path / "tools/slow_tests.py").read_text()
    repository.put("tools/slow_tests.py", tool.replace("LANDING_COMMITS = 200", "LANDING_COMMITS = 0"))
    assert "was raised 1 commits ago" in repository.tool("check").stdout
    assert repository.tool("landing").returncode == 0


def test_each_test_of_today_has_its_turn_before_its_entry_is_too_old() -> None:
    landing, entries = read()
    tests = slow_tests()
    assert landing > 0 and entries.keys() <= set(tests)
    dealt = turns(entries, tests, TURN_S)
    assert len(dealt) <= LANDINGS + 1
    assert {name for names in dealt for name in names} == {
        name for name in tests if not name.startswith(EVERY_LANDING)
    }
