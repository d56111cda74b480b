"""`earl eval` and `earl chat`: a checkpoint that plays without being trained further."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_old_run_directory import RESUMED_AT, unpacked
from tests.support.launched import earl_here
from tests.support.paths import ROOT

EPISODES = 24


def earl(directory: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "earl.cli.main", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds runs/old, which has checkpoints."""
    (tmp_path / "runs").mkdir()
    unpacked(tmp_path / "runs")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["old", f"runs/old/checkpoints/step-{RESUMED_AT}"])
def test_a_checkpoint_is_evaluated_in_a_run_of_its_own(folder: Path, policy: str):
    done = earl(folder, "eval", policy, "--episodes", str(EPISODES), "--plain", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["evaluated"], figures["trained"], figures["live"]) == (EPISODES, 0, 0)
    assert -1 <= figures["reward_low"] <= figures["mean_reward"] <= figures["reward_high"] <= 1
    assert f"playing version {RESUMED_AT} of runs/old" in done.stderr
    assert done.stderr.splitlines()[-1] == f"earl: complete: {EPISODES} episodes are evaluated"
    assert (folder / "runs" / "old-eval" / "report.html").is_file()


@pytest.mark.slow
def test_an_exported_model_is_evaluated_by_its_record(folder: Path):
    assert earl(folder, "export", "old", "--to", "model").returncode == 0
    asked = earl(folder, "eval", "model", "--plain")
    assert asked.returncode == 2
    assert "give --environment.serve and --rollout.max_context_tokens, or" in asked.stderr
    keys = ("--environment.serve", "earl.env.adapters.open_spiel:environments",
            "--rollout.max_context_tokens", "80")  # fmt: skip
    done = earl(folder, "eval", "model", "--episodes", str(EPISODES), "--plain", "--json", *keys)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["evaluated"] == EPISODES and "playing model" in done.stderr


@pytest.mark.slow
def test_a_run_is_watched_and_a_model_talked_to(folder: Path):
    watched = earl(folder, "chat", "old", "--watch", "--seed", "7")
    assert watched.returncode == 0, watched.stderr
    first, *_, last = watched.stdout.splitlines()
    assert first == "open_spiel/tic_tac_toe, seed 7" and "return " in last
    again = earl(folder, "chat", "runs/old/checkpoints/latest", "--watch", "--seed", "7")
    assert watched.stdout == again.stdout
    assert earl(folder, "export", "old", "--to", "model").returncode == 0
    talked = earl(folder, "chat", "model", "--seed", "1", "--tokens", "4", text="0 1 2\n3\n\nnever read\n")
    assert talked.returncode == 0, talked.stderr
    assert len(talked.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("eval", "old", "--version", "999"), "has no checkpoint 999; there are: "),
        (("eval", "old", "--version", "3", "--best"), "--version and --best are two ways"),
        (("eval", "--model", "x"), "x has no earl.json, which would name its environment; give its run file"),
        (("eval", "old", "--run-file", "x"), "--run-file belongs to a model's directory, and runs/old is"),
        (("eval", "runs/old/checkpoints/step-999"), "has no checkpoint 999; there are: "),
        (("eval", "runs/old/checkpoints/newest"), "newest is no checkpoint; give one of: latest, best"),
        (("eval", "runs/none/checkpoints/latest"), "there is no run 'runs/none'"),
        (("chat", "runs/old/checkpoints/step-999"), "has no checkpoint 999; there are: "),
        (("chat", "runs/old/checkpoints/newest"), "newest is no checkpoint; give one of: latest, best"),
        (("chat", "old", "--version", "3", "--best"), "--version and --best are two ways"),
        (("eval", "old", "--evaluation.episodes", "x"), '--evaluation.episodes "x" is wrong; give a whole'),
        (("chat", "none"), "there is no run 'none'"),
        (("chat", "runs"), "runs is neither a run nor a model; give a run"),
        (("chat", "old", "--version", "999"), "has no checkpoint 999; there are: "),
    ],
)
def test_a_mistake_is_one_line(folder: Path, arguments: tuple[str, ...], said: str):
    done = earl_here(folder, *arguments)
    assert done.returncode in (2, 9) and done.stdout == ""
    # On a slow machine the work before the mistake is long enough to be told.
    *waits, error = done.stderr.splitlines()
    assert error.startswith("earl: error: ") and said in error
    assert all(line.startswith("writing the checkpoint as a model: ") for line in waits)
