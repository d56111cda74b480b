"""`earl bench observability` with real runs, side by side: what it writes, and that a failure ends all."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

import benchmarks.observed_run
from benchmarks.observability import SETTINGS, app, pair
from earl.config.load import Override
from earl.errors import ProcessFailed
from earl.stack.ports import free_port
from tests.support.forked import begin_server
from tests.support.launched import SMALL
from tests.support.preloaded import ForkedPopen


class Starts:
    """The benchmark's subprocess module."""

    Popen, DEVNULL, STDOUT = ForkedPopen, subprocess.DEVNULL, subprocess.STDOUT


SERVICES = {"scheduler", "gateway", "env", "trainer", "rollout", "engine", "valkey", "launcher"}


@pytest.fixture(autouse=True)
def server() -> None:
    """The fork server, begun before any test has its temporary directories elsewhere."""
    begin_server()


def children() -> set[psutil.Process]:
    """Processes below this one: other tests have some, too, such as the server that forks their programs."""
    return set(psutil.Process().children(recursive=True))


def left_by(directory: Path, before: set[psutil.Process]) -> list[str]:
    """Command lines of processes that name the directory, and children of this one that are new."""
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(directory) in line] + [str(child) for child in children() - before]


def test_a_run_that_fails_ends_the_other_one_and_leaves_nothing(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
):
    before = children()
    # Both runs are ended while their processes start: what these import is not what is tested.
    monkeypatch.setattr(benchmarks.observed_run, "subprocess", Starts)
    port = free_port("127.0.0.1")
    # Only one of both can have it.
    overrides: list[Override] = [*SETTINGS, *SMALL.items(), ("scheduler.bind", f"127.0.0.1:{port}")]
    with pytest.raises(ProcessFailed, match=rf"the run that is o(n|ff) ended with 5: earl: error: .*{port}"):
        asyncio.run(pair(0, ["metrics", "traces"], overrides, 300.0))
    assert left_by(elsewhere, before) == [] and list(elsewhere.iterdir()) == []


@pytest.mark.slow
def test_a_pair_of_runs_says_where_processor_time_went(tmp_path: Path, elsewhere: Path):
    before = children()
    dotted = [text for key, value in SMALL.items() for text in (f"--{key}", value)]
    arguments = ["--rounds", "1", "--steps", "40", "--obs.trace_fraction", "1.0", "--results", str(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, *dotted])
    assert done.exit_code == 0, done.output
    [path] = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    off, on = result["runs"]
    assert (off["side"], off["first"], on["side"], on["first"]) == ("off", True, "on", False)
    assert off["cpu_us_by_kind"].keys() == SERVICES and on["cpu_us_by_kind"].keys() == SERVICES | {
        "collector"
    }
    for run in (off, on):
        assert run["steps"] > 0 and run["seconds"] > 0
        assert run["cpu_us_per_token"] == pytest.approx(sum(run["cpu_us_by_kind"].values()))
    assert on["trace_bytes"] > 1000
    assert result["cost"] == 1 - on["tokens_per_s"] / off["tokens_per_s"]
    assert left_by(elsewhere, before) == [] and list(elsewhere.iterdir()) == []
