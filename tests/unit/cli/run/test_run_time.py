"""The time of a run that was resumed: the whole run's in every place, not the last launch's."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from earl.cli.lib import snapshot
from earl.cli.lib.snapshot import elapsed_s
from earl.cli.lib.snapshot_clock import SnapshotClock
from earl.cli.report.embedded import embedded
from earl.cli.run.live_view import LiveView
from earl.cli.run.plain_view import PlainView
from earl.cli.run.run_clock import RunClock
from earl.cli.show import ls, status
from earl.config.run import RunConfig
from earl.stack.record import LaunchRecord, LaunchRecorder, read_record, write_record
from earl.stack.rundir import RunDirectory
from earl.stack.status import RunStatus
from tests.support.runs import tictactoe

S = 10**9
# The first launch took 3,500 s; the second one began an hour later and took 100 s.
FIRST = LaunchRecord(
    1, "first", started_ns=S, written_ns=3501 * S, ended_ns=3501 * S, outcome="stopped",
    status=RunStatus(run="test", phase="train", step=30, steps=40, elapsed_s=3500.0),
)  # fmt: skip
SECOND = LaunchRecord(
    2, "second", started_ns=7200 * S, written_ns=7300 * S, ended_ns=7300 * S, outcome="complete",
    status=RunStatus(run="test", phase="done", step=40, steps=40, elapsed_s=3600.0),
)  # fmt: skip


def two_launches(folder: Path) -> tuple[RunConfig, Path]:
    """A run that was stopped and resumed: each launch wrote its record, the last one its result."""
    config = tictactoe(folder, scheduler={"bind": "127.0.0.1:9"})
    for resume, record in ((False, FIRST), (True, SECOND)):
        with RunDirectory(config, resume=resume) as directory:
            directory.write(config, config)
            write_record(directory.path, record)
    return config, directory.path


def test_status_list_and_page_show_the_time_of_both_launches(tmp_path: Path):
    config, directory = two_launches(tmp_path)
    (directory / "result.json").write_text(json.dumps({"seconds": 100.0}))
    shown = CliRunner().invoke(status.app, [str(directory), "--json"])
    assert json.loads(shown.stdout)["elapsed_s"] == 3600.0
    [listed] = json.loads(CliRunner().invoke(ls.app, [str(tmp_path), "--json"]).stdout)
    assert listed["elapsed_s"] == 3600.0
    assert embedded(directory, config).sections["run"]["elapsed_s"] == 3600.0


@pytest.mark.parametrize(
    ("record", "running", "active", "seconds"),
    [
        (None, RunStatus(elapsed_s=5.0), True, 5.0),
        (SECOND, RunStatus(elapsed_s=3550.0), True, 3550.0),
        # Lost: its record was written last 40 s after the launch began.
        (replace(SECOND, status=RunStatus(elapsed_s=3500.0), ended_ns=0, written_ns=7240 * S), RunStatus(),
         False, 3540.0),
        (LaunchRecord(1, "new"), RunStatus(), True, 0.0),
    ],
)  # fmt: skip
def test_a_run_has_one_time(record: LaunchRecord | None, running: RunStatus, active: bool, seconds: float):
    assert elapsed_s(record, running, active=active) == seconds


def test_a_lost_run_has_the_time_of_its_last_step(tmp_path: Path):
    """Its launch's record is as old as the last process that changed its state, often the start-up's."""
    config = tictactoe(tmp_path, scheduler={"bind": "127.0.0.1:9"})
    lost = replace(SECOND, outcome="", ended_ns=0, written_ns=7240 * S, status=RunStatus(elapsed_s=3500.0))
    with RunDirectory(config, resume=False) as directory:
        directory.write(config, config)
        write_record(directory.path, lost)
    metrics = directory.path / "metrics.jsonl"

    def shown_s() -> float:
        shown = json.loads(CliRunner().invoke(status.app, [str(directory.path), "--json"]).stdout)
        assert shown["state"] == "lost"
        return shown["elapsed_s"]

    assert shown_s() == 3540.0
    # The last line was truncated by what ended the run.
    metrics.write_text('{"step": 1, "time_s": 3510.0}\n{"step": 2, "time_s": 9000.0}\n{"step": 3, "time')
    assert shown_s() == 9000.0
    metrics.write_text('{"step": 1, "time_s": 3510.0}\n{"step": 2, "time_s": null}\n')
    assert shown_s() == 3540.0


def test_a_launch_records_the_time_of_earlier_ones(tmp_path: Path):
    recorder = LaunchRecorder(tmp_path, "mark", (), 0.0, earlier_s=3500.0)
    record = read_record(tmp_path)
    assert record is not None and record.status == RunStatus(elapsed_s=3500.0)
    # The clock of the scheduler, which answers later, does not count the start-up.
    assert elapsed_s(record, RunStatus(), active=True) == 3500.0
    recorder.update((), SECOND.status)
    recorder.end("complete")
    record = read_record(tmp_path)
    assert record is not None and record.status.elapsed_s == 3600.0


def test_a_clock_continues_a_run_and_never_goes_back():
    now = [100.0]
    clock = RunClock(lambda: now[0])
    now[0] = 108.0
    clock.update(0.0)
    assert clock.seconds == 8.0
    clock.update(3500.0)
    assert clock.seconds == 3500.0
    now[0] = 110.0
    clock.update(3501.0)
    assert clock.seconds == 3502.0


def test_snapshots_count_on_while_the_scheduler_is_silent_and_never_go_back():
    now = [100.0]
    clock = SnapshotClock(lambda: now[0])
    assert clock.shown(3500.0, active=True, answered=False) == 3500.0
    assert clock.shown(3501.0, active=True, answered=True) == 3501.0
    now[0] = 110.0
    assert clock.shown(3501.0, active=True, answered=False) == 3511.0
    # It was restarted: it did not count the time in which it was away.
    now[0] = 112.0
    assert clock.shown(3503.0, active=True, answered=True) == 3511.0
    now[0] = 122.0
    assert clock.shown(3513.0, active=True, answered=True) == 3513.0
    # What an ended run recorded counts, and a later launch does not count the time between.
    assert clock.shown(3512.0, active=False, answered=False) == 3512.0
    now[0] = 9000.0
    assert clock.shown(3512.0, active=True, answered=False) == 3512.0


async def test_a_monitor_shows_a_time_that_only_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now, answers = [100.0], [RunStatus(), RunStatus(run="test", elapsed_s=3501.0), RunStatus()]
    monkeypatch.setattr(snapshot, "SnapshotClock", lambda: SnapshotClock(lambda: now[0]))

    async def status_of(*_: object) -> tuple[RunStatus | None, tuple[()]]:
        answer = answers.pop(0)
        return answer if answer.run else None, ()

    monkeypatch.setattr(snapshot.RunMonitor, "_status", status_of)
    config = tictactoe(tmp_path, scheduler={"bind": "127.0.0.1:9"}, gateway={"bind": "127.0.0.1:9"})
    with RunDirectory(config, resume=False) as directory:
        directory.write(config, config)
        write_record(
            directory.path, replace(SECOND, outcome="", ended_ns=0, status=RunStatus(elapsed_s=3500.0))
        )
        monitor = snapshot.RunMonitor.of_run(directory.path)
        shown = []
        for now[0] in (100.0, 101.0, 111.0):
            shown.append((await monitor.snapshot(0.1)).elapsed_s)
        await monitor.close()
    assert shown == [3500.0, 3501.0, 3511.0]


def test_both_views_show_the_time_of_the_whole_run():
    resumed = RunStatus(run="test", phase="train", step=31, steps=40, elapsed_s=3500.0)
    lines, screen = io.StringIO(), io.StringIO()
    PlainView(lines).update((), resumed)
    assert re.match(r"\[58:2\d\] train 31/40", lines.getvalue())
    view = LiveView(Console(file=screen, width=80, force_terminal=False))
    with view:
        view.update((), resumed)
    assert re.search(r"test  58:2\d", screen.getvalue())
