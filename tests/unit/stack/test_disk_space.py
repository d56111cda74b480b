"""A full disk is told as such, and leaves room to say so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from earl.errors import BusUnavailable, ConfigError, DiskFull
from earl.stack import disk_space, rundir
from earl.stack.rundir import RunDirectory
from tests.support.runs import tictactoe

ENDED = BusUnavailable("valkey: the embedded Valkey ended with exit code 1", "see its log")


def free(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free_bytes))


def test_what_fails_on_a_full_disk_failed_for_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 12 << 10)
    full = disk_space.with_disk_full(tmp_path, ENDED)
    assert isinstance(full, DiskFull) and full.exit_code == 25 and full.__cause__ is ENDED
    assert full.message == f"the disk of {tmp_path} is full (12 KiB free): {ENDED.message}"
    assert f"earl resume {tmp_path}" in full.remedy
    assert disk_space.with_disk_full(tmp_path, full) is full


def test_what_fails_where_there_is_room_keeps_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 5 << 20)
    assert disk_space.with_disk_full(tmp_path, ENDED) is ENDED
    assert disk_space.with_disk_full(tmp_path / "gone", ENDED) is ENDED


def test_the_reserve_is_there_while_a_run_is_and_goes_before_a_failure_is_written(tmp_path: Path) -> None:
    config = tictactoe(tmp_path)
    with RunDirectory(config, resume=False) as directory:
        directory.write(config, config)
        reserve = directory.path / disk_space.RESERVE
        assert reserve.stat().st_blocks * 512 >= disk_space.RESERVE_BYTES
        directory.failed(ENDED)
        assert not reserve.exists() and (directory.path / rundir.FAILURE).is_file()
        disk_space.hold(directory.path)
    assert not reserve.exists()


def test_a_start_on_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 3 << 20)
    config = tictactoe(tmp_path / "runs")
    with pytest.raises(ConfigError, match="3 MiB of free space, less than 64"):
        RunDirectory(config, resume=False)
    assert not rundir.run_path(config).exists()
