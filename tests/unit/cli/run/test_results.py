"""Checks what an ended run leaves: a report, or the reason why there is none, and its figures always."""

from __future__ import annotations

import json
from pathlib import Path

from earl.cli.lib.figures import figures
from earl.cli.run.launch import write_results
from earl.stack.launcher import LaunchOutcome
from earl.stack.status import RunStatus
from tests.support.dashboard import config_of
from tests.support.recorded import recorded


def test_a_run_does_not_fail_for_its_report(tmp_path: Path):
    recorded(tmp_path, steps=2)
    config = config_of(tmp_path)
    outcome = LaunchOutcome(tmp_path, RunStatus(run=config.name), complete=True, seconds=1.0)
    assert write_results(outcome, config) == str(tmp_path / "report.html")
    (tmp_path / "report.html").unlink()
    (tmp_path / "report.html").mkdir()
    assert "not written: " in write_results(outcome, config)
    (tmp_path / "run.json").unlink()
    (tmp_path / "result.json").unlink()
    assert "is not a run directory" in write_results(outcome, config)
    assert json.loads((tmp_path / "result.json").read_text())["seconds"] == 1.0


def test_the_result_has_the_time_of_the_launch_and_of_the_whole_run(tmp_path: Path):
    status = RunStatus(elapsed_s=3600.0)
    result = figures(LaunchOutcome(tmp_path, status, complete=True, seconds=90.0), seed=0)
    assert (result["seconds"], result["run_seconds"]) == (90.0, 3600.0)
