"""`earl status` and `earl top`: what a snapshot at a run is shown as, and what state a run is in."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from earl.cli.lib.concerns import WAIT_S
from earl.cli.lib.snapshot import RunMonitor, RunState, state_of
from earl.cli.show import panels
from earl.cli.show.status import EXIT_CODES, app, rendered
from earl.errors import EarlError, InsecureCall
from earl.obs.metrics import LineFile
from earl.stack.record import LaunchRecord, is_held, read_record, write_record
from earl.stack.rundir import RunDirectory
from earl.stack.status import ProcessState, RunStatus
from tests.support.clock import no_deadline
from tests.support.runs import tictactoe
from tests.support.snapshots import ROLLOUT, SNAPSHOT, STATUS, TRAINER


def text_of(snapshot) -> str:
    console = Console(file=io.StringIO(), width=140, record=True)
    console.print(rendered(snapshot))
    return console.export_text()


def test_a_look_is_shown_whole():
    text = text_of(SNAPSHOT)
    for shown in (
        "growing  running, reinforcement learning 30/140, version 31, 1:01",
        "rollout runs dp2; the selector goes to tp2: 0.3 s quicker",
        "dp2 (pinned)",
        "5,120",
        "9,000",
        "48/64",
        "0.50 (max 1)",
        "44 (p95 53, max 66)",
        "1.2 / 3.1 ms",
        "0.4 / 2.0 ms",
        "switched from dp2 to tp2 in 4.20 s, stalled 0.31 s (epoch 3)",
        "lengths grew",
        "sequences for an engine",
        "http://127.0.0.1:9100/metrics",
    ):
        assert shown in text, shown
    queues = next(table for table in panels.tables(SNAPSHOT) if table.title == "queues")
    assert ("tickets", "8", "48 playing, oldest 1:15 rollout-0") in queues.rows
    assert ("sessions for a host", "3", "48 of 128 open") in queues.rows
    leases = next(table for table in panels.tables(SNAPSHOT) if table.title == "playing")
    assert leases.rows[0] == ("rollout-0", "1:15", "912", "2", "train")
    assert ("trajectories for the trainer", "62", "16 in progress, 800 done") in queues.rows


def test_only_a_running_run_has_time_left():
    timed = replace(STATUS, metrics={**STATUS.metrics, "phase_left_s": 62.0})
    assert "30/140, about 1:02 left" in panels.headline(replace(SNAPSHOT, status=timed))
    stopped = replace(SNAPSHOT, status=timed, state=RunState.STOPPED)
    assert "30/140, version" in panels.headline(stopped)


def test_a_step_in_progress_has_a_line_while_its_scheduler_answers():
    figures = {"step_spent_s": 12.0, "step_played": 20.0, "step_episodes": 64.0}
    ledger = replace(STATUS.ledger, planned=0)
    stepping = replace(SNAPSHOT, status=replace(STATUS, metrics=figures, ledger=ledger), silent={})
    line = "step 31: 20 of 64 episodes played, 0:12 so far"
    assert panels.step_line(stepping) == line
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(rendered(stepping))
    assert console.export_text().splitlines()[1].rstrip() == line
    assert panels.step_line(replace(stepping, silent={"scheduler": "no answer"})) == ""
    assert panels.step_line(replace(stepping, state=RunState.STOPPED)) == ""


def test_figures_in_lines_have_no_empty_head():
    narrow = io.StringIO()
    Console(file=narrow, width=30).print(rendered(SNAPSHOT))
    lines = [line.strip() for line in narrow.getvalue().splitlines()]
    after = lines[lines.index("learning") + 1 :]
    assert next(line for line in after if line) == "score                 +0.250"


def test_what_is_wrong_is_remarked():
    silent = replace(SNAPSHOT, silent={"scheduler": "GetStatus at 127.0.0.1:1 gave no answer within 2 s"})
    assert "scheduler does not answer: GetStatus at 127.0.0.1:1" in text_of(silent)
    failed = replace(
        SNAPSHOT, state=RunState.FAILED, failure={"error": "EngineLost", "message": "engine 0 is gone"}
    )
    assert "EngineLost: engine 0 is gone" in text_of(failed)
    assert "earl stop runs/growing" in text_of(replace(SNAPSHOT, state=RunState.LOST))
    stale = replace(SNAPSHOT, status=replace(STATUS, workers=(replace(STATUS.workers[0], silent_s=9.0),)))
    assert "9 s ago (late)" in text_of(stale)


def test_what_environments_did_wrong_is_remarked():
    faulty = replace(
        SNAPSHOT.environments[0],
        faults=47,
        last_fault="return 7 is outside\x1b[2J",
        commonest_fault="unknown ending 17",
        commonest_count=40,
        quarantines=("host h is in quarantine for 27 s more: reward inf",),
    )
    text = " ".join(text_of(replace(SNAPSHOT, environments=(faulty,))).split())
    assert "open_spiel/tic_tac_toe: host h is in quarantine for 27 s more: reward inf" in text
    assert "47 faults, the last: return 7 is outside" in text and "40 times: unknown ending 17" in text
    assert "\x1b[2J" not in text
    assert "fault" not in text_of(SNAPSHOT)


@pytest.mark.parametrize(
    ("queued", "hosts", "quarantined", "available", "reason"),
    [
        (3, 0, 0, 0, "3 episodes wait for a host of a/game: no host serves it"),
        (1, 1, 1, 0, "1 episode waits for a host of a/game: its host is in quarantine"),
        (1200, 2, 2, 0, "1,200 episodes wait for a host of a/game: its 2 hosts are in quarantine"),
        (1, 1, 0, 0, "1 episode waits for a host of a/game: its host is draining, reconnecting or without "
                     "capacity"),
        (3, 4, 1, 0, "3 episodes wait for a host of a/game: its 4 hosts are in quarantine (1), draining, "
                     "reconnecting or without capacity"),
        # Those wait for room alone; and nobody waits.
        (3, 2, 1, 1, ""),
        (0, 1, 1, 0, ""),
    ],
)  # fmt: skip
def test_episodes_that_no_host_can_take_are_remarked(queued, hosts, quarantined, available, reason):
    given = {"name": "a/game", "queued": queued, "hosts": hosts, "quarantined": quarantined}
    environment = replace(SNAPSHOT.environments[0], **given, available_hosts=available)
    for wait_s in (0.0, WAIT_S):
        waiting = replace(environment, oldest_wait_s=wait_s)
        problems = list(panels.problems(replace(SNAPSHOT, environments=(waiting,))))
        shown = bool(reason) and wait_s >= WAIT_S
        assert [problem for problem in problems if "for a host of" in problem] == [reason] * shown


def test_it_is_said_that_no_host_has_come_yet_and_which_others_have():
    worker = replace(ROLLOUT, gauges={**ROLLOUT.gauges, "waits_for_host_s": 42.4})
    waits = replace(SNAPSHOT, status=replace(STATUS, workers=(worker, TRAINER)))
    text = " ".join(text_of(waits).split())
    assert (
        "waited 42 s for a host that serves the run's environment; hosts serve open_spiel/tic_tac_toe" in text
    )
    assert "no host is connected" in " ".join(text_of(replace(waits, environments=())).split())
    assert "waited" not in text_of(SNAPSHOT)


def test_a_run_that_has_only_begun_has_no_empty_tables():
    text = text_of(
        replace(
            SNAPSHOT, state=RunState.STARTING, status=RunStatus(run="growing"), environments=(), endpoints={}
        )
    )
    assert text.splitlines()[0] == "growing  starting, 1:01"
    assert "processes" in text and "queues" not in text and "tickets" not in text


def record(**given) -> LaunchRecord:
    return LaunchRecord(1, "mark", **given)


@pytest.mark.parametrize(
    ("kept", "held", "answers", "failed", "state"),
    [
        (record(), True, False, False, RunState.STARTING),
        (None, True, False, False, RunState.STARTING),
        (record(ready_s=5.0), True, True, False, RunState.RUNNING),
        (record(ready_s=5.0, outcome="complete"), False, False, False, RunState.COMPLETE),
        (record(ready_s=5.0, outcome="stopped"), False, True, False, RunState.STOPPED),
        (record(outcome="failed"), False, False, True, RunState.FAILED),
        (record(ready_s=5.0), False, False, False, RunState.LOST),
        (record(ready_s=5.0), False, True, False, RunState.LOST),
        (None, False, True, False, RunState.RUNNING),
        (None, False, False, True, RunState.FAILED),
        (None, False, False, False, RunState.LOST),
    ],
)
def test_the_state_of_a_run(kept, held, answers, failed, state):
    assert state_of(kept, held, answers, failed=failed) is state


def test_codes_of_states_are_no_codes_of_errors():
    waiting, codes = [EarlError], set()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        codes.add(kind.exit_code)
    assert not codes & (set(EXIT_CODES.values()) - {0})


def test_a_run_that_has_ended_is_shown_from_its_directory(tmp_path: Path):
    config = tictactoe(tmp_path, scheduler={"bind": "127.0.0.1:9"})
    with RunDirectory(config, resume=False) as directory:
        directory.write(config, config)
        assert is_held(directory.path)
        ended = LaunchRecord(
            1, "mark", started_ns=10**18, written_ns=10**18, ended_ns=10**18 + 90 * 10**9, ready_s=5.0,
            outcome="stopped", status=replace(STATUS, run="test", metrics={"loss": float("nan")}),
            processes=(ProcessState("scheduler", "stopped", 2.0, 0, 17),),
        )  # fmt: skip
        write_record(directory.path, ended)
    assert not is_held(directory.path)
    kept = read_record(directory.path)
    assert kept is not None and (kept.status.ledger, kept.processes) == (STATUS.ledger, ended.processes)
    told = CliRunner().invoke(app, [str(directory.path), "--json"])
    assert told.exit_code == 21
    said = json.loads(told.stdout, parse_constant=pytest.fail)
    assert (said["state"], said["elapsed_s"], said["status"]["ledger"]["live"]) == ("stopped", 61.0, 134)
    assert said["processes"][0]["seconds"] == 92.0 and said["silent"] == {}
    plain = CliRunner().invoke(app, [str(directory.path)])
    assert plain.stdout.startswith("test  stopped, reinforcement learning 30/140")


async def test_a_run_whose_launcher_is_gone_is_lost(tmp_path: Path):
    config = tictactoe(tmp_path, scheduler={"bind": "127.0.0.1:9"}, gateway={"bind": "127.0.0.1:9"})
    with RunDirectory(config, resume=False) as directory:
        directory.write(config, config)
        write_record(directory.path, record(ready_s=5.0))
    monitor = RunMonitor.of_run(directory.path)
    try:
        # Services of a launcher that is gone are asked once: no retry waits for its turn.
        with no_deadline():
            snapshot = await monitor.snapshot()
    finally:
        await monitor.close()
    assert snapshot.state is RunState.LOST and snapshot.status.run == "test"


def test_a_record_that_this_version_cannot_read_is_none(tmp_path: Path):
    assert read_record(tmp_path) is None
    LineFile(tmp_path / "launch.json").write({"pid": "x"})
    assert read_record(tmp_path) is None


def test_a_fleet_is_shown_no_token_in_plain_text(monkeypatch: pytest.MonkeyPatch):
    for name in ("EARL_TLS_CERT", "EARL_TLS_KEY", "EARL_TLS_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EARL_TOKEN", "secret")
    for addresses in (("192.0.2.1:7000", ""), ("127.0.0.1:9", "gateway.example.org:7000")):
        with pytest.raises(InsecureCall, match="in plain text"):
            RunMonitor.of_fleet(*addresses)
    monkeypatch.setenv("EARL_TLS_CA", "system")
    RunMonitor.of_fleet("192.0.2.1:7000", "")


async def test_a_fleet_is_looked_at_by_its_addresses():
    monitor = RunMonitor.of_fleet("127.0.0.1:9", "127.0.0.1:9")
    try:
        snapshot = await monitor.snapshot(0.1)
    finally:
        await monitor.close()
    assert snapshot.state is RunState.LOST and snapshot.status.run == "127.0.0.1:9"
    assert "127.0.0.1:9  lost" in text_of(snapshot) and "scheduler does not answer" in text_of(snapshot)
    assert state_of(None, False, True, failed=False) is RunState.RUNNING
