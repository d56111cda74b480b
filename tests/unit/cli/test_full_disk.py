"""Commands that write where there is no room, or where nobody may write: one line, no traceback."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from earl.errors import ConfigError, DiskFull, file_error


@pytest.fixture(params=["size=4k", "ro"])
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder with less room than a page, or read-only; and what is said of it."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield (
            path,
            "the disk is full; free some space" if "size" in request.param else "read-only file system",
        )
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_project_cannot_be_written(hostile: tuple[Path, str]) -> None:
    folder, reason = hostile
    done = subprocess.run(
        [sys.executable, "-m", "earl.cli.main", "init", "guess"],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    assert done.stderr.startswith("earl: error: ") and reason in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == (DiskFull if "full" in reason else ConfigError).exit_code


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room(number: int) -> None:
    error = file_error(OSError(number, "No space left on device", "/runs/x"))
    assert isinstance(error, DiskFull) and error.message == "/runs/x cannot be written: the disk is full"
    nameless = file_error(OSError(number, "No space left on device"))
    assert nameless is not None and nameless.message == "the disk is full"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_no_permission(number: int) -> None:
    error = file_error(OSError(number, "Permission denied", "/a", None, "/runs/x"))
    assert isinstance(error, ConfigError) and error.message == "/runs/x cannot be used: permission denied"


def test_other_failures_of_files_are_told_whole() -> None:
    assert file_error(OSError(errno.EIO, "Input/output error", "/runs/x")) is None
