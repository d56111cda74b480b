"""`earl logs`: merged by time, readable, filtered, followed through rotation and restarts."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from earl.cli.lib.log_lines import LineFilter, LogLine, Logs
from earl.cli.lib.notices import NOTICE_S
from earl.cli.lib.snapshot import RunMonitor
from earl.cli.show import logs
from earl.cli.show.logs import IdleLine, RunProgress, app, follow_logs, redraws, seconds_of
from earl.errors import ConfigError
from earl.stack.record import LaunchRecord, write_record
from earl.stack.run_files import LOCK
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
    for option in ("-n", "--last", "--tail"):
        assert told(run, option, "3") == told(run)[-3:]
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


class IdleScreen:
    """A terminal with an idle line, and a clock that the test sets."""

    def __init__(self, progress: Callable[[], Coroutine[Any, Any, str]], width: int = 60) -> None:
        self.file, self.now_s = io.StringIO(), 0.0
        self.console = Console(file=self.file, width=width, force_terminal=True)
        self.idle = IdleLine(self.console, progress, lambda: self.now_s)

    async def drawn(self, at_s: float, *, logged: bool = False) -> str:
        """Returns what is written at this time; tasks that can end have ended before."""
        for _ in range(3):
            await asyncio.sleep(0)
        self.now_s = at_s
        self.file.seek(0)
        self.file.truncate()
        self.idle.update(logged=logged)
        return self.file.getvalue()


CLEARED = "\r\x1b[K"


async def test_a_terminal_without_new_lines_says_how_far_the_run_is():
    asked = []

    async def progress() -> str:
        asked.append(1)
        return f"demo  running, step {len(asked)}: 20 of 64 episodes played"

    screen = IdleScreen(progress, width=48)
    assert await screen.drawn(1.0, logged=True) == await screen.drawn(NOTICE_S) == ""
    assert await screen.drawn(1.0 + NOTICE_S) == f"{CLEARED}no new line for 5 s"
    text = await screen.drawn(1.2 + NOTICE_S)  # the run has answered
    assert text == f"{CLEARED}no new line for 5 s: demo  running, step 1: 20 of"[: len(text)]
    assert len(text.removeprefix(CLEARED)) == 47
    assert await screen.drawn(2.0 + NOTICE_S) == ""
    assert "for 10 s: demo" in await screen.drawn(1.0 + 2 * NOTICE_S)
    assert "step 2" in await screen.drawn(1.2 + 2 * NOTICE_S)
    # It is taken away before a line is shown, and what was known then is not told again.
    assert await screen.drawn(12.0, logged=True) == CLEARED
    assert await screen.drawn(12.2, logged=True) == ""
    assert await screen.drawn(12.2 + NOTICE_S) == f"{CLEARED}no new line for 5 s"
    await screen.idle.close()
    assert screen.file.getvalue().endswith(CLEARED)


async def test_a_run_that_does_not_answer_is_asked_once_and_holds_nothing_back():
    asked = []

    async def progress() -> str:
        asked.append(1)
        await asyncio.Event().wait()
        return "never"

    screen = IdleScreen(progress)
    for number in range(1, 4):
        assert await screen.drawn(number * NOTICE_S) == f"{CLEARED}no new line for {number * NOTICE_S:.0f} s"
    assert await screen.drawn(16.0, logged=True) == CLEARED
    assert len(asked) == 1
    await screen.idle.close()


@pytest.fixture
def held(run: Path) -> Iterator[Path]:
    """The run while its launcher runs."""
    with open(run / LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield run


class IdleTerminal(io.StringIO):
    """A terminal, as far as a console can tell. waits: set by an idle line."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = asyncio.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "no new line" in text:
            self.waits.set()
        return super().write(text)


async def test_new_lines_come_though_no_service_answers_and_ctrl_c_leaves_no_idle_line(
    held: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logs, "NOTICE_S", 0.0)
    asked = asyncio.Event()

    async def unanswered(_: RunProgress) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(RunProgress, "text", unanswered)
    screen = IdleTerminal()
    console = Console(file=screen, width=60, force_terminal=True)
    shown = asyncio.Event()

    def show(line: LogLine) -> None:
        if "it came meanwhile" in line.text:
            screen.waits.clear()
            shown.set()

    source = Logs(held / "logs", (), LineFilter())
    following = asyncio.create_task(follow_logs(held, source, show, console))
    async with asyncio.timeout(20):
        await asked.wait()
        log = held / "logs" / "trainer.log"
        log.write_text(log.read_text() + said(20, "info", "it came meanwhile"))
        await shown.wait()
        await screen.waits.wait()
    following.cancel()  # as Ctrl-C does
    with pytest.raises(asyncio.CancelledError):
        await following
    assert screen.getvalue().endswith(CLEARED)


def test_a_pipe_has_no_idle_line_whatever_its_colours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    pipe = Console(file=io.StringIO())
    assert pipe.is_terminal and not redraws(pipe)
    assert redraws(Console(file=IdleTerminal()))
    monkeypatch.setenv("TERM", "dumb")
    assert not redraws(Console(file=IdleTerminal()))


async def test_how_far_a_run_is_comes_from_its_snapshot_over_the_same_connections(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    opened = []
    of_run = RunMonitor.of_run
    monkeypatch.setattr(RunMonitor, "of_run", lambda directory: opened.append(directory) or of_run(directory))
    write_record(run, LaunchRecord(1, "mark"))
    async with RunProgress(run) as progress:
        assert (await progress.text()).startswith("test  lost")
        assert (await progress.text()).startswith("test  lost")
    assert opened == [run]


async def test_a_run_that_cannot_be_asked_is_followed_all_the_same(run: Path):
    (run / "run.json").write_text('{"name": "test"}')  # of another version
    async with RunProgress(run) as progress:
        assert await progress.text() == ""
        screen = IdleScreen(progress.text)
        assert await screen.drawn(NOTICE_S) == f"{CLEARED}no new line for 5 s"
        assert await screen.drawn(2 * NOTICE_S) == f"{CLEARED}no new line for 10 s"
        await screen.idle.close()


def test_a_word_that_is_neither_a_run_nor_a_process_has_one_remedy(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(run.parent)
    run.rename(run.parent / "t1")
    (run.parent / "runs").mkdir()
    (run.parent / "t1").rename(run.parent / "runs" / "t1")
    nowhere = r"neither a run '{}' nor a process of that name in runs/t1; {}$"
    for word, remedy in (
        ("nope", "earl ls lists the runs"),
        ("trainr", r"did you mean trainer\?"),
        ("t11", r"did you mean t1\?"),
    ):
        with pytest.raises(ConfigError, match=nowhere.format(word, remedy)):
            told(word)
    for log in (run.parent / "runs" / "t1" / "logs").iterdir():
        log.unlink()
    with pytest.raises(ConfigError, match=nowhere.format("nope", "earl ls lists the runs")):
        told("nope")
