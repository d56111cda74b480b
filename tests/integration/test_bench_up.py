"""`earl bench up` starts and ends real runs, and looks for itself for what they left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.up import app
from tests.support.launched import SMALL


@pytest.mark.slow
def test_what_a_run_held_is_found_while_it_runs_and_gone_afterwards(tmp_path: Path):
    dotted = [text for key, value in SMALL.items() for text in (f"--{key}", value)]
    done = CliRunner().invoke(app, ["--repetitions", "1", "--results", str(tmp_path), *dotted])
    assert done.exit_code == 0, done.output
    [path] = tmp_path.iterdir()
    result = json.loads(path.read_text())
    assert result["left"] == 0 and [run["now"] for run in result["runs"]] == [False, True]
    for run in result["runs"]:
        # Launcher, warden, Valkey, scheduler, gateway, env host, trainer and rollout worker at least.
        assert run["processes"] >= 8 and run["left"] == []
        assert "valkey.sock" in run["held"] and any(name.endswith(".arena") for name in run["held"])
