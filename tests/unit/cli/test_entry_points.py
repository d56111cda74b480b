"""Checks what a process that cannot begin says: one line, the documented exit code, no readiness."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.recorded import recorded

PROCESSES = (
    ("earl.dashboard",),
    ("earl.stack.sink", "--to", "tensorboard"),
    ("services.scheduler",),
    ("services.env_gateway",),
)


def run(directory: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments, "--run", str(directory / "run.json")]
    paths = f"{directory}{os.pathsep}{ROOT}"
    return subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process[0])
def test_a_wrong_run_file_is_an_error_with_a_remedy(tmp_path: Path, process: tuple[str, ...]):
    (tmp_path / "run.json").write_text('{"name": "no/name"}')
    done = run(tmp_path, *process)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("earl: error: ") and "run.json" in done.stderr and "; " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_sink_that_cannot_be_opened_was_never_ready(tmp_path: Path):
    recorded(tmp_path, steps=1)
    (tmp_path / "tensorboard.py").write_text("raise RuntimeError('broken')\n")
    done = run(tmp_path, "earl.stack.sink", "--to", "tensorboard")
    assert (done.returncode, done.stdout) == (1, "") and "broken" in done.stderr
