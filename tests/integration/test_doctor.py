"""`earl doctor` on this machine: bytes really move, and nothing is left behind."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from earl.dispatch.transport.nixl.agent import rdma_ports
from tests.support.recorded import TICTACTOE


def doctor(*arguments: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """(exit code, all of it, findings by name)."""
    command = [sys.executable, "-c", "from earl.cli.machine.doctor import app; app()", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    found = json.loads(done.stdout)
    return done.returncode, found, {finding["name"]: finding for finding in found["findings"]}


def run_file(directory: Path, **data_plane: str) -> str:
    lines = "".join(f'{key} = "{value}"\n' for key, value in data_plane.items())
    path = directory / "run.toml"
    path.write_text(f"{TICTACTOE.read_text()}\n[data_plane]\n{lines}")
    return str(path)


@pytest.mark.slow
def test_ways_that_are_installed_move_bytes(tmp_path: Path):
    left = tmp_path / "arenas" / "earl-doctor-killed"
    left.mkdir(parents=True)
    (left / "doctor-0000000000000001.arena").touch()
    code, found, findings = doctor(run_file(tmp_path, transport="ucx", arena_dir=str(tmp_path / "arenas")))
    assert code == 0 and found["works"]
    paths = {"shared memory": "shm", "ucx": "ucx-tcp"}
    if importlib.util.find_spec("nixl_cu12") is not None:
        paths["nixl"] = "nixl-rdma" if findings["rdma"]["facts"]["ports_up"] else "nixl-tcp"
    for name, path in paths.items():
        assert findings[name]["works"], findings[name]
        assert findings[name]["facts"]["path"] == path
        assert findings[name]["facts"]["moved_bytes"] == 16 << 20 and findings[name]["facts"]["gb_per_s"] > 0
    assert findings["ucx"]["needed"] and findings["ucx"]["facts"]["transports"]["tcp"]
    assert not list((tmp_path / "arenas").iterdir())


@pytest.mark.skipif(bool(rdma_ports()), reason="this machine has RDMA")
@pytest.mark.slow
def test_a_data_plane_that_cannot_work_here_is_exit_code_1(tmp_path: Path):
    code, found, findings = doctor(run_file(tmp_path, transport="nixl", require="rdma"))
    assert code == 1 and not found["works"]
    assert findings["rdma"]["needed"] and findings["rdma"]["said"].startswith("not there")
    assert findings["rdma"]["remedy"]
    # What the run file does not ask for still works, and is no reason to fail.
    assert findings["shared memory"]["works"] and not findings["shared memory"]["needed"]
