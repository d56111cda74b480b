"""Checks what a benchmark finds of a run's processes in /proc."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks import footprint

# Maps a file of shared memory, binds a socket, and says so.
HOLDS = """
import mmap, os, signal, socket, sys
file = open(sys.argv[1], "wb+")
file.truncate(4096)
held = mmap.mmap(file.fileno(), 4096)
file.close()
bound = socket.socket(socket.AF_UNIX)
bound.bind(sys.argv[2])
print("ready", flush=True)
signal.pause()
"""


def test_what_a_run_holds_and_leaves_is_found_without_asking_it(tmp_path: Path):
    mark = f"t{secrets.token_hex(6)}"
    memory, other = (footprint.SHARED_MEMORY / f"{name}-{mark}" for name in ("held", "other"))
    bound = tmp_path / "its.sock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(memory), str(bound)],
        stdout=subprocess.PIPE,
        env={**os.environ, footprint.MARK: mark},
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        before = footprint.measured(mark)
        assert before.processes.keys() == {process.pid} and before.held == {memory, bound}
        assert footprint.left_behind(mark, mark, before) == [
            f"process {process.pid}",
            str(memory),
            str(bound),
        ]
        process.kill()
        process.wait()
        other.touch()  # of the run by its name, though nobody was seen to hold it
        assert footprint.left_behind(mark, mark, before) == sorted(map(str, (memory, other, bound)))
    finally:
        process.kill()
        for path in (memory, other, bound):
            path.unlink(missing_ok=True)
    assert footprint.left_behind(mark, mark, before) == []


def test_a_process_without_its_mark_is_found_by_its_parent_and_still_when_that_is_gone():
    mark = f"t{secrets.token_hex(6)}"
    parent = subprocess.Popen(
        ["bash", "-c", "env -u EARL_BENCH_MARK bash -c 'echo $$; exec sleep 1000' & wait"],
        stdout=subprocess.PIPE,
        env={**os.environ, footprint.MARK: mark},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        before = footprint.measured(mark)
        assert before.processes.keys() == {parent.pid, child}
        parent.kill()
        parent.wait()
        assert footprint.measured(mark).processes == {}
        assert footprint.left_behind(mark, mark, before) == [f"process {child}"]
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_place_ends_whom_it_saw_though_they_lost_mark_and_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mark = f"t{secrets.token_hex(6)}"
    pids: list[int] = []

    def interrupted() -> None:
        with footprint.fresh("test", mark, "*") as place:
            orphans = subprocess.Popen(
                ["bash", "-c", "trap '' TERM; env -u EARL_BENCH_MARK setsid sleep 1000 & echo $!; wait"],
                stdout=subprocess.PIPE, env={**os.environ, footprint.MARK: mark}, cwd=place.directory,
            )  # fmt: skip
            assert orphans.stdout is not None
            pids.append(int(orphans.stdout.readline()))
            assert place.measured().processes.keys() == {orphans.pid, *pids}
            orphans.kill()
            orphans.wait()
            other = subprocess.Popen(["sleep", "1000"], env={**os.environ, footprint.MARK: mark})
            pids.append(other.pid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert footprint.living(footprint.Footprint({pid: began(pid) for pid in pids})) == {}
    assert not list(tmp_path.iterdir())


def began(pid: int) -> int:
    """0 if it has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(rest[18]) if state != "Z" else 0
