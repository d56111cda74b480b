"""EARL from its wheel, without make or a checkout: docs/install.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools.install import torch_arguments


def ran(command: list[str | Path], directory: Path) -> str:
    """Returns what a command printed to stdout. It has to succeed, without the checkout on Python's path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_demo_runs_from_the_wheel_alone(tmp_path: Path):
    source = tmp_path / "source"
    ran(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", source], tmp_path)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    ran([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "dist", source], tmp_path)
    (wheel,) = (tmp_path / "dist").glob("earl-*-py3-none-any.whl")
    assert wheel.stat().st_size < 3_000_000
    ran([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    # As docs/install.md says: PyTorch first, where its build without CUDA is wanted.
    ran([python, "-m", "pip", "install", "--quiet", *torch_arguments(python)], tmp_path)
    ran([python, "-m", "pip", "install", "--quiet", f"{wheel}[demo]"], tmp_path)
    there = tmp_path / "elsewhere"
    there.mkdir()
    command = [tmp_path / "venv" / "bin" / "earl", "demo", "--scheduler.steps", "3", "--json", "--plain"]
    result = json.loads(ran(command, there))
    assert result["trained"] > 0 and result["live"] == 0
    assert (there / "runs" / "demo-seed0" / "report.html").is_file()
