"""`earl up` and `earl stop`: what they wait for, what they send, and what they leave alone."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from earl.cli.run import started, stop, up
from earl.cli.run.detached import left_s
from earl.cli.run.launch import handle_signals
from earl.dispatch.memory.arena_file import arena_directory
from earl.errors import ConfigError, EngineLost, InsecureCall, ProcessFailed
from earl.stack import plan
from earl.stack.ending import ending_reason
from earl.stack.endpoints import Endpoints, endpoints_of
from earl.stack.launcher import Signals, launch
from earl.stack.record import LaunchRecord, LaunchRecorder, read_record, write_record
from earl.stack.run_files import FAILURE
from earl.stack.rundir import RunDirectory
from earl.stack.status import ProcessState, RunStatus
from earl.stack.supervisor import Supervisor
from tests.support.disk import full_at
from tests.support.notices import heard_notices
from tests.support.runs import tictactoe

TRAINING = RunStatus(phase="train", step=3, steps=40, message="stopped by SIGTERM (which earl stop sends)")
# Holds the lock of a run's directory, and ends with the number of the signal that it gets first.
LAUNCHER = """
import fcntl, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGUSR1))
fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print(flush=True)
sys.exit(signal.sigwait((signal.SIGTERM, signal.SIGUSR1)))
"""


async def test_a_run_is_up_without_what_it_goes_on_without(tmp_path: Path):
    config = tictactoe(tmp_path)
    with RunDirectory(config, resume=False) as directory:
        addresses = plan.StackAddresses("127.0.0.1:1", "127.0.0.1:2", "")
        supervisor = Supervisor(plan.plan(config, directory.run_json), directory, addresses, config.stack)
        recorder = LaunchRecorder(directory.path, supervisor.mark, (), time.monotonic())

        def ready_s(**states: str) -> float:
            for name, process in supervisor.processes.items():
                process.state = states.get(name, "ready")
            recorder.update(supervisor.states(), RunStatus())
            record = read_record(directory.path)
            assert record is not None
            return record.ready_s

        assert not ready_s(dashboard="starting")
        assert not ready_s(dashboard="failed", scheduler="failed")
        assert ready_s(dashboard="failed", model="done")


async def test_a_launcher_whose_token_would_travel_in_plain_text_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Or else `earl status` and `earl stop` would say that it was killed."""
    for name in ("EARL_TLS_CERT", "EARL_TLS_KEY", "EARL_TLS_CA", "EARL_TOKENS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EARL_TOKEN", "secret")
    config = tictactoe(tmp_path / "runs", scheduler={"bind": "0.0.0.0:0"})
    with pytest.raises(InsecureCall, match="in plain text; set EARL_TLS_CA"):
        await launch(
            config, resume=False, started_at=0.0, signals=Signals(), on_update=lambda processes, status: None
        )
    assert not (tmp_path / "runs").exists()


async def test_up_gives_a_silent_launcher_up():
    stream = asyncio.StreamReader()
    stream.feed_data(b'{"kind": "processes", "states": {"valkey": "ready", "model": "starting"}}\n')
    with pytest.raises(ProcessFailed, match=r"nothing new for 0\.05 s, waiting for model"):
        await up.follow_launch(stream, lambda states, quiet_s, left_s: None, 0.05, 0.01)


async def test_up_says_again_what_it_waits_for_while_nothing_changes():
    stream = asyncio.StreamReader()
    stream.feed_data(b'{"kind": "processes", "states": {"valkey": "ready", "model": "starting"}}\n')
    console = Console(file=io.StringIO(), width=80)
    show, shown = up.shown_on(console), asyncio.Event()

    def count(states: Mapping[str, str], quiet_s: float, left_s: float) -> None:
        show(states, quiet_s, left_s)
        if console.file.getvalue().count("waiting for model") >= 2:  # pyright: ignore
            shown.set()

    hearing = asyncio.create_task(up.follow_launch(stream, count, 60.0, 0.01))
    await asyncio.wait_for(shown.wait(), 20.0)
    stream.feed_data(b'{"kind": "ready", "seconds": 1.0}\n')
    assert (await hearing).kind == "ready"


@pytest.mark.parametrize("terminal", [True, False])
def test_up_says_how_long_a_start_will_still_take_by_the_last_one(terminal: bool):
    starting = ProcessState("trainer", "starting", 4.0, 0, usual_s=30.5, most_s=60.0)
    first = ProcessState("model", "starting", 4.0, 0, most_s=60.0)
    late = ProcessState("trainer", "starting", 40.0, 0, usual_s=30.5, most_s=60.0)
    assert left_s([first]) == left_s([late]) == 0.0 and left_s([first, starting, late]) == 26.5
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal)
    show = up.shown_on(console)
    show({"model": "ready", "trainer": "starting"}, 0.0, 26.5)
    show({"model": "ready", "trainer": "starting"}, 6.0, 20.5)
    told = console.file.getvalue()  # pyright: ignore
    expected = "1/2 ready, about 21 s left, waiting for trainer (6 s)"
    assert told.endswith(expected if terminal else "waiting for trainer: 6 s, about 21 s left\n")
    show({"model": "ready", "trainer": "starting"}, 40.0, 0.0)
    assert "left" not in console.file.getvalue().removeprefix(told)  # pyright: ignore


@pytest.mark.parametrize(("now", "first"), [(False, signal.SIGTERM), (True, signal.SIGUSR1)])
def test_down_asks_and_down_now_hurries(tmp_path: Path, now: bool, first: signal.Signals):
    config, lock = tictactoe(tmp_path), str(tmp_path / "launcher.lock")
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LAUNCHER, lock], stdout=subprocess.PIPE
    ) as launcher:
        try:
            assert launcher.stdout is not None and launcher.stdout.readline()
            write_record(tmp_path, LaunchRecord(launcher.pid, "no such mark"))
            stop.stop_launcher(tmp_path, config, now=now)
        finally:
            launcher.kill()
    assert launcher.returncode == first


def test_stop_tells_what_it_waits_for_until_the_launcher_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The launcher ends neither at SIGTERM nor at SIGUSR1: each wait tells what it waits for."""
    heard = heard_notices(monkeypatch, stop)
    lines: list[str] = []

    def wait_all(_: list[int], bound_s: float) -> bool:
        if bound_s != stop.WARDEN_S:
            lines.append(heard.next_line())
        return False

    monkeypatch.setattr(stop, "launcher_pidfd", lambda _: os.open(os.devnull, os.O_RDONLY))
    monkeypatch.setattr(stop.warden, "send", lambda *_: None)
    monkeypatch.setattr(stop.warden, "wait_all", wait_all)
    config = tictactoe(tmp_path, stack={"stop_s": 30.0})
    stop.stop_launcher(tmp_path, config, now=False)
    assert lines == [
        f"{tmp_path} ends its step and saves a checkpoint: 0 of at most 120 s",
        f"{tmp_path} ends: 0 of at most 20 s",
    ]
    assert "has not ended within 120 s: signalled again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "by"),
    [
        (signal.SIGINT, "Ctrl-C"),
        (signal.SIGTERM, "SIGTERM (which earl stop sends)"),
        (signal.SIGHUP, "its terminal, which was closed"),
    ],
)
async def test_a_signal_stops_a_launcher_and_is_named(number: signal.Signals, by: str):
    signals = handle_signals()
    try:
        os.kill(os.getpid(), number)
        async with asyncio.timeout(60.0):
            await signals.stop.wait()
        assert signals.by == by and not signals.hurry.is_set()
    finally:
        unhandled()


async def test_a_launcher_under_nohup_outlives_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = handle_signals()
    try:
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(60.0):
            await signals.stop.wait()
        assert signals.by == "SIGTERM (which earl stop sends)"
    finally:
        unhandled()
        signal.signal(signal.SIGHUP, before)


def unhandled() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        asyncio.get_running_loop().remove_signal_handler(number)


async def test_a_launcher_that_is_told_so_hurries():
    signals = handle_signals()
    try:
        assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGUSR1)
        async with asyncio.timeout(60.0):
            await signals.hurry.wait()
        assert signals.stop.is_set()
    finally:
        unhandled()


def test_services_that_no_launcher_started_are_left_alone(tmp_path: Path):
    config = tictactoe(tmp_path, data_plane={"arena_dir": str(tmp_path / "arenas")})
    with RunDirectory(config, resume=False) as directory:
        directory.write(config, config)
    arenas = arena_directory(config.data_plane, directory.path)
    arenas.mkdir(parents=True)
    with pytest.raises(ConfigError, match="nothing was touched"):
        stop.end(directory.path, now=False)
    assert arenas.is_dir()


def test_stop_says_where_the_report_is_if_there_is_one(tmp_path: Path):
    ended = stop.EndedRun(tmp_path, was_running=True, outcome="complete", reason="complete", seconds=2.0)
    assert ended.lines() == [f"{tmp_path} has ended, after 2.0 s: complete"]
    (tmp_path / "report.html").touch()
    assert ended.lines()[1:] == [f"report: {tmp_path / 'report.html'}"]


@pytest.mark.parametrize(
    ("outcome", "status", "failure", "sentence"),
    [
        ("stopped", TRAINING, {}, "stopped by SIGTERM (which earl stop sends) after 3 of 40 steps"),
        ("failed", TRAINING, {"error": "EngineLost", "message": "gone"},
         "failed after 3 of 40 steps: EngineLost: gone"),
        ("", RunStatus(), {}, ending_reason("", RunStatus(), {})),
    ],
)  # fmt: skip
def test_stop_says_why_the_run_ended_as_status_does(
    tmp_path: Path, outcome: Any, status: RunStatus, failure: dict[str, str], sentence: str
):
    config = tictactoe(tmp_path)
    with RunDirectory(config, resume=False) as directory:
        directory.write(config, config)
    record = LaunchRecord(1, "no such mark", outcome=outcome, status=status)
    write_record(directory.path, record)
    (directory.path / FAILURE).write_text(json.dumps(failure))
    ended = stop.end(directory.path, now=False)
    assert ended.as_object()["why_ended"] == sentence
    stopped_now = replace(ended, was_running=True, seconds=2.0)
    assert stopped_now.lines()[0] == f"{directory.path} has ended, after 2.0 s: {sentence}"


def test_up_says_why_a_run_failed_that_its_launcher_had_begun(tmp_path: Path):
    assert up.failure_sentence(tmp_path, 7) == []
    write_record(tmp_path, LaunchRecord(7, "no such mark", outcome="failed", status=TRAINING))
    (tmp_path / FAILURE).write_text(json.dumps({"error": "EngineLost", "message": "gone"}))
    assert up.failure_sentence(tmp_path, 7) == ["failed after 3 of 40 steps: EngineLost: gone"]
    assert up.failure_sentence(tmp_path, 8) == []  # the launch before failed, and this one began nothing


def test_why_a_launch_failed_is_not_hidden_by_a_full_disk(tmp_path: Path, caplog):
    config = tictactoe(tmp_path)
    with RunDirectory(config, resume=False) as directory:
        recorder = LaunchRecorder(directory.path, "no such mark", (), time.monotonic())
        with full_at(1):
            directory.failed(EngineLost("engine 0 is gone", "see its log"))
            for _ in range(2):
                recorder.end("failed")
        assert not (directory.path / FAILURE).exists()
        assert len(caplog.records) == 2 and "failure.json cannot be written" in caplog.text
        directory.failed(EngineLost("engine 0 is gone", "see its log"))
        assert "engine 0 is gone" in (directory.path / FAILURE).read_text()


def test_endpoints_that_cannot_be_written_are_written_later(tmp_path: Path, caplog):
    directory = tmp_path / "later"
    endpoints = Endpoints(directory, "growing")
    for _ in range(2):
        endpoints.show({"gateway": "127.0.0.1:9"})
    assert len(caplog.records) == 1
    directory.mkdir()
    endpoints.show({"gateway": "127.0.0.1:9"})
    assert endpoints_of(directory) == {"gateway": "127.0.0.1:9"}
    endpoints.close()


def test_a_started_run_is_told_in_a_few_lines(tmp_path: Path):
    addresses = {
        "scheduler": "127.0.0.1:1",
        "gateway": "127.0.0.1:2",
        "dashboard": "http://127.0.0.1:3/?token=t",
    }
    begun = started.StartedRun(tmp_path / "r", 7, 3.94, ["valkey", "gateway"], addresses, "own/game")
    assert begun.lines()[:3] == [
        f"r is up after 3.9 s: {tmp_path / 'r'}, 2 processes",
        "page: http://127.0.0.1:3/?token=t",
        "hosts of own/game connect with: earl env serve MODULE:CLASS --gateway 127.0.0.1:2",
    ]
    assert begun.as_object()["addresses"] == addresses
    without_page = started.StartedRun(tmp_path / "r", 7, 3.94, [], {"gateway": "127.0.0.1:2"})
    assert [line.partition(":")[0] for line in without_page.lines()[1:]] == ["show", "end"]
