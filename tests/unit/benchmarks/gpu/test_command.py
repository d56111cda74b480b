"""`earl bench gpu`: the smallest cut of it, which checks it takes, and its exit code."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.gpu import command
from benchmarks.gpu.check import GpuCheck
from benchmarks.gpu.command import app, chosen_checks, summary
from benchmarks.gpu.table import CHECKS
from tests.support.paths import ROOT

FAILS = GpuCheck("fails", "tests.support.gpu_checks:fails", "it fails", 60.0)


def invoked(results: Path, *arguments: str):
    """The command on a processor, with the least sizes."""
    options = ["--device", "cpu", "--sizes", "least", "--results", str(results)]
    return CliRunner().invoke(app, [*options, *arguments])


def test_the_cheapest_checks_run_here_and_those_of_a_card_say_that_they_need_one(tmp_path: Path):
    done = invoked(tmp_path, "--only", "arena,copies")
    assert done.exit_code == 0, done.output
    (path,) = tmp_path.iterdir()
    result = json.loads(path.read_text())
    assert (result["ok"], result["failed"], result["skipped"]) == (1, 0, 2)
    rows = {row["name"]: row for row in result["checks"]}
    assert rows["arena"]["outcome"] == "ok" and rows["arena"]["figures"]["create_gb_s"] > 0
    assert rows["copies"]["reason"].startswith("it needs a CUDA card")
    assert result["device"] == "cpu" and result["machine"]["gpus"] == []


def test_a_required_check_that_fails_is_the_exit_code_and_the_result_is_saved(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(command, "CHECKS", (FAILS,))
    done = invoked(tmp_path)
    assert done.exit_code == 1
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["failed"] == 1


def test_without_a_card_it_says_so_at_once(tmp_path: Path):
    done = CliRunner().invoke(app, ["--results", str(tmp_path)])
    assert done.exit_code != 0 and "--device cpu" in getattr(done.exception, "remedy", "")
    assert list(tmp_path.iterdir()) == []


def test_names_and_their_beginnings_choose_checks():
    assert [check.name for check in chosen_checks("arena", CHECKS)] == ["arena", "arena-from-card"]
    assert [check.name for check in chosen_checks("switch-warm,copies", CHECKS)] == ["copies", "switch-warm"]
    assert chosen_checks("", CHECKS) == list(CHECKS)
    with pytest.raises(typer.BadParameter, match="'nothing' is no check: copies,"):
        chosen_checks("nothing", CHECKS)


def test_what_is_not_required_fails_nothing():
    rows = [
        {"outcome": outcome, "required": required}
        for outcome in ("ok", "failed")
        for required in (True, False)
    ]
    counts = summary(rows)
    assert (counts["ok"], counts["failed"], counts["failed_not_required"]) == (2, 1, 1)


def test_the_table_names_each_check_once_and_functions_that_are_there():
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names))
    for check in CHECKS:
        module, _, function = check.function.partition(":")
        tree = ast.parse((ROOT / "benchmarks" / "gpu" / f"{module}.py").read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, check.name
