"""A run's directory that cannot be used: one line that names it and what to do."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from earl.errors import ConfigError
from earl.stack.rundir import RunDirectory
from tests.support.runs import tictactoe


def test_a_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "runs").touch()
    with pytest.raises(ConfigError, match=r"runs/test cannot be written: .*--runs-dir"):
        RunDirectory(tictactoe(tmp_path / "runs"), resume=False)


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3 << 20))
    with pytest.raises(ConfigError, match="has 3 MiB of free space, less than 64; free some space"):
        RunDirectory(tictactoe(tmp_path), resume=False)
