"""`earl bench up` starts and ends real runs, and looks for itself for what they left."""

from __future__ import annotations

import json
import secrets
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import footprint
from benchmarks.up import app, earl
from earl.cli.run.demo import RUN_FILE, example
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


@pytest.mark.slow
def test_a_run_that_is_never_told_to_end_goes_with_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mark = f"bench-{secrets.token_hex(4)}"
    dotted = [text for key, value in SMALL.items() for text in (f"--{key}", value)]
    seen = footprint.Footprint()
    with pytest.raises(KeyboardInterrupt), footprint.fresh("up", mark, "*") as place:
        earl(mark, "up", str(example(RUN_FILE)), "--runs-dir", str(place.directory), "--name", mark, *dotted)
        seen = place.measured()
        raise KeyboardInterrupt
    assert len(seen.processes) >= 8 and seen.held
    assert footprint.left_behind(mark, mark, seen) == [] and not list(tmp_path.iterdir())
