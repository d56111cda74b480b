"""`earl bench gpu` on a processor: every check that says anything there passes, and the others run too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.gpu.command import app
from benchmarks.gpu.execution import CheckRunner
from benchmarks.gpu.table import CHECKS

OF_CARDS = {check.name for check in CHECKS if check.needs_card}
# Beside other tests it takes longer than the eight minutes that it takes alone.
MINUTES = 25


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 60)
def test_every_check_passes_on_a_processor_but_those_that_need_a_card(tmp_path: Path):
    options = ["--device", "cpu", "--minutes", str(MINUTES), "--results", str(tmp_path)]
    done = CliRunner().invoke(app, options)
    (path,) = tmp_path.iterdir()
    result = json.loads(path.read_text())
    assert [row for row in result["checks"] if row["outcome"] == "failed"] == []
    skipped = {row["name"]: row["reason"] for row in result["checks"] if row["outcome"] == "skipped"}
    assert set(skipped) == OF_CARDS == {
        "copies", "attention-backends", "arena-from-card", "memory-trainer", "memory-engine", "collectives",
    }  # fmt: skip
    assert all(reason.startswith("it needs a CUDA card: ") for reason in skipped.values())
    assert done.exit_code == 0 and result["failed"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_only_a_card_can_answer_is_computed_on_a_processor_too():
    here = [replace(check, needs_card="") for check in CHECKS if check.needs_card]
    rows = CheckRunner("cpu", 2, "least", 540.0).run(here)
    assert {row["name"]: row["reason"] for row in rows if row["outcome"] != "ok"} == {}
    peaks = [row for row in rows if row["name"].startswith("memory-")]
    assert [row["figures"]["points"] for row in peaks] == [2, 1]
