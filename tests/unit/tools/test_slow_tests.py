"""The record of slow tests finds what is missing and what is old, and keeps what a run has shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tools.slow_tests import faults, oldest, pytest_within, read, renewed, slow_in, slow_tests


def entry(landing: int, seconds: float | None = 10.0, date: str = "2026-01-01") -> dict[str, Any]:
    return {"commit": "abc", "date": date, "seconds": seconds, "landing": landing}


def test_marks_are_found_wherever_they_stand() -> None:
    source = """
import pytest

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
    assert slow_in(source) == [
        "test_marked",
        "test_by_parameter",
        "TestMachine::runTest",
        "TestTwo::test_one",
    ]
    assert slow_in("pytestmark = [pytest.mark.slow]\ndef test_all(): ...") == ["test_all"]


def test_pytest_finds_the_same_tests(tmp_path: Path) -> None:
    """Of one folder: the tool reads source, pytest imports it."""
    command = ["--collect-only", "-qq", "-o", "addopts=--import-mode=importlib", "-m", "slow", "tests/drills"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *command],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    files = {line.partition(":")[0] for line in done.stdout.splitlines() if line.startswith("tests/")}
    assert files == {name.partition("::")[0] for name in slow_tests() if name.startswith("tests/drills")}
    assert files


def test_missing_old_and_unknown_entries_are_found() -> None:
    entries = {"a": entry(5), "b": entry(0), "gone": entry(5)}
    assert [fault.split()[0] for fault in faults(5, entries, ["a", "b", "new"])] == ["new", "gone", "b"]
    assert list(faults(4, {"b": entry(0)}, ["b"])) == []


def test_the_oldest_that_fit_are_chosen() -> None:
    entries = {
        "old": entry(1, 50.0),
        "older": entry(0, 30.0),
        "never": entry(0, None, ""),
        "long": entry(1, 900),
    }
    chosen = oldest(entries, entries, 150.0)
    assert set(chosen[:2]) == {"never", "older"} and chosen[2:] == ["old"]
    assert len({oldest(entries, ["never", "older"], 1.0, seed)[0] for seed in "abcdefghijklmnop"}) == 2
    assert oldest({"long": entry(1, 900)}, ["long"], 10.0) == ["long"]


def test_a_run_renews_what_passed_and_nothing_else() -> None:
    def line(test: str, outcome: str) -> dict[str, Any]:
        return {"test": test, "outcome": outcome, "seconds": 2.0, "reason": "no podman"}

    entries = {"bad": entry(1), "skipped": entry(1)}
    lines = [line("good", "passed"), line("good", "skipped"), line("bad", "passed"), line("bad", "failed"),
             line("skipped", "skipped")]  # fmt: skip
    after = renewed(entries, lines, landing=7, commit="def", date="2026-02-02")
    assert after["good"] == {"commit": "def", "date": "2026-02-02", "seconds": 4.0, "landing": 7}
    assert after["bad"] == entries["bad"]
    assert after["skipped"] == {**entries["skipped"], "landing": 7, "skipped": "no podman"}


def test_the_plugin_writes_each_outcome(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_good(): ...\n"
        "def test_bad(): assert 0\n"
        "def test_not(): pytest.skip('why not')\n"
    )
    results = tmp_path / "results.jsonl"
    environment = {"EARL_SLOW_RESULTS": str(results), "PYTHONPATH": str(ROOT)}
    command = ["-p", "tests.support.slow_results", "-c", "/dev/null", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *command],
        cwd=ROOT, env=environment, capture_output=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(line["test"].partition("::")[2], line["outcome"]) for line in lines] == [
        ("test_good", "passed"), ("test_bad", "failed"), ("test_not", "skipped"),
    ]  # fmt: skip
    assert "why not" in lines[2]["reason"]


def test_a_run_that_takes_too_long_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert pytest_within([sys.executable, "-c", "import time; time.sleep(60)"], {}, 0.2) == 1
    assert "stopped after 0 s" in capsys.readouterr().out


def test_the_record_is_read() -> None:
    landing, entries = read()
    assert landing > 0 and entries.keys() <= set(slow_tests())
