"""`earl logs`: merged by time, readable, filtered, followed through rotation and restarts."""

from __future__ import annotations

import io
import json
import logging
import os
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from earl.cli.lib.log_lines import LineFilter, Logs
from earl.cli.lib.notices import NOTICE_S
from earl.cli.show.logs import IdleLine, app, progress_of, seconds_of
from earl.errors import ConfigError
from tests.support.runs import tictactoe


def said(second: float, level: str, message: str, **fields) -> str:
    time = f"2026-11-22T10:00:{second:06.3f}Z"
    return (
        json.dumps(
            {"time": time, "level": level, "process": "x", "logger": "l", "message": message, **fields}
        )
        + "\n"
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text(tictactoe(tmp_path).model_dump_json())
    (logs / "scheduler.log").write_text(
        said(1, "info", "it serves", at="127.0.0.1:1")
        + said(5, "warning", "a lease ended", worker="rollout-0")
    )
    (logs / "trainer.log").write_text(
        "a library speaks first\n"
        + said(2, "info", "rank 0")
        + said(3, "error", "it failed", traceback="Traceback:\n  File x\nTypeError: no")
        + "and goes on\n"
        + said(4, "info", "again")
    )
    return logs.parent


def told(*arguments: object) -> list[str]:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    return result.stdout.splitlines()


def test_lines_are_merged_by_time_and_readable(run: Path):
    lines = [line.split(" ", 1)[1] for line in told(run)]
    assert lines == [
        "scheduler it serves  at=127.0.0.1:1",
        "trainer   a library speaks first",
        "trainer   rank 0",
        "trainer   error: it failed",
        "trainer       Traceback:",
        "trainer         File x",
        "trainer       TypeError: no",
        "trainer   and goes on",
        "trainer   again",
        "scheduler warning: a lease ended  worker=rollout-0",
    ]


def test_what_a_terminal_would_obey_is_shown(run: Path):
    (run / "logs" / "gateway.log").write_text(
        said(6, "warning", "\x1b[2Jgone", reason="\x1b]0;x\x07") + "\x1b[31m\x9b1mloud\n"
    )
    lines = [line.split(" ", 1)[1] for line in told(run, "gateway")]
    assert lines == ["gateway   warning: ␛[2Jgone  reason=␛]0;x␇", "gateway   ␛[31m\ufffd1mloud"]


def test_they_are_filtered_by_process_level_and_number(run: Path):
    assert len(told(run, "scheduler")) == 2
    # What is no record goes with the one before it; before the first, nobody knows how bad it is.
    worse = [line.split(" ", 2)[2].strip() for line in told(run, "--level", "warning")]
    assert worse[:2] == ["a library speaks first", "error: it failed"]
    assert worse[5:] == ["and goes on", "warning: a lease ended  worker=rollout-0"]
    assert len(told(run, "-n", "3")) == 3
    with pytest.raises(ConfigError, match=r"no process 'trainr'; name one of scheduler, trainer"):
        told(run, "trainr")
    with pytest.raises(ConfigError, match="'loud' is not a level; give one of debug"):
        told(run, "--level", "loud")


def test_json_is_what_was_logged(run: Path):
    found = [json.loads(line) for line in told(run, "--json")]
    assert [one["message"] for one in found[:3]] == ["it serves", "a library speaks first", "rank 0"]
    assert found[1] == {
        "time": "2026-11-22T10:00:02.000Z",
        "process": "trainer",
        "message": "a library speaks first",
    }
    assert "traceback" in found[3]


def test_since_leaves_older_ones_out(run: Path):
    first = next(Logs(run / "logs", ("trainer",), LineFilter()).lines())
    source = Logs(run / "logs", (), LineFilter(since=first.time_s + 1.5))
    assert [line.as_object()["message"] for line in source.lines()] == ["again", "a lease ended"]
    assert [seconds_of(text) for text in ("90s", "10m", "1.5h", "2d")] == [90, 600, 5400, 172800]
    with pytest.raises(ConfigError, match="'soon' is not a duration"):
        seconds_of("soon")


def test_a_log_is_followed_through_halves_rotation_and_new_processes(run: Path):
    log = run / "logs" / "trainer.log"
    source = Logs(run / "logs", ("trainer", "env-0"), LineFilter(logging.INFO))
    assert len(list(source.lines())) == 5
    with open(log, "a") as file:
        file.write(said(6, "info", "whole") + said(7, "info", "half")[:20])
        file.flush()
        assert [line.as_object()["message"] for line in source.lines()] == ["whole"]
        file.write(said(7, "info", "half")[20:])
    assert [line.as_object()["message"] for line in source.lines()] == ["half"]
    os.rename(log, run / "logs" / "trainer.log.1")
    assert list(source.lines()) == []
    log.write_text(said(8, "info", "after rotation"))
    (run / "logs" / "env-0.log").write_text(said(9, "info", "it came later"))
    assert [line.as_object()["message"] for line in source.lines()] == ["after rotation", "it came later"]
    log.write_text("")  # cut off where it stands
    assert list(source.lines()) == []
    with open(log, "a") as file:
        file.write(said(10, "info", "new"))
    assert [line.as_object()["message"] for line in source.lines()] == ["new"]


def test_following_a_run_that_has_ended_ends(run: Path):
    assert len(told(run, "--follow")) == len(told(run))


def test_a_terminal_without_new_lines_says_how_far_the_run_is():
    screen, now_s = io.StringIO(), 0.0
    console = Console(file=screen, width=48, force_terminal=True)
    idle = IdleLine(console, lambda: "demo  running, step 1: 20 of 64 episodes played", lambda: now_s)

    def drawn(at_s: float, *, logged: bool) -> str:
        nonlocal now_s
        now_s = at_s
        screen.seek(0)
        screen.truncate()
        idle.update(logged=logged)
        return screen.getvalue()

    assert drawn(1.0, logged=True) == drawn(NOTICE_S, logged=False) == ""
    text = drawn(1.0 + NOTICE_S, logged=False)
    assert text == "\r\x1b[Knothing logged for 5 s: demo  running, step 1: "[: len(text)]
    assert len(text.removeprefix("\r\x1b[K")) == 47
    assert drawn(2.0 + NOTICE_S, logged=False) == ""
    assert "for 10 s" in drawn(1.0 + 2 * NOTICE_S, logged=False)
    # It is taken away before a record is shown.
    assert drawn(12.0, logged=True) == "\r\x1b[K" and drawn(12.2, logged=True) == ""


def test_how_far_a_run_is_comes_from_its_snapshot(run: Path):
    assert progress_of(run).startswith("test  lost")
