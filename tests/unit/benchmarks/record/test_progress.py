"""Checks what a benchmark tells of its phases while it runs, and that it tells nothing on a pipe."""

from __future__ import annotations

import io
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.record import execution, progress
from benchmarks.record.checkout import Checkout
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import IN_PROGRESS, Progress, counted, notices_shown, phase, view_drawn


class Terminal(io.StringIO):
    """A stream that calls itself a terminal, and sets `written` at each flush."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.written.set()

    def next_line(self) -> str:
        """The next line that is written from now on."""
        self.truncate(0)
        self.seek(0)
        self.written.clear()
        assert self.written.wait(20.0)
        return self.getvalue().splitlines()[-1]


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_benchmark_tells_its_phase_and_for_how_long() -> None:
    clock = Clock()
    bench = Progress("newcomer", clock)
    clock.now_s += 12.0
    assert bench.line() == "earl bench newcomer: 12 s"
    bench.enter("make demo (3 of 4)")
    clock.now_s += 5.0
    assert bench.line() == "earl bench newcomer, make demo (3 of 4): 5 s"


def test_a_phase_that_counts_tells_how_far_it_is_and_how_long_it_will_take() -> None:
    clock = Clock()
    bench = Progress("demo", clock)
    bench.enter("seeds", 0, 3)
    clock.now_s += 60.0
    assert bench.line() == "earl bench demo, seeds: 0 of 3 in 60 s"
    bench.enter("seeds", 1, 3)
    assert bench.line() == "earl bench demo, seeds: 1 of 3 in 60 s, about 120 s left"
    clock.now_s += 30.0
    bench.enter("seeds", 1, 3)
    assert bench.line() == "earl bench demo, seeds: 1 of 3 in 90 s, about 90 s left"


def test_items_are_counted_while_they_are_worked_on() -> None:
    bench = Progress("engine", Clock())
    with notices_shown(bench, file=io.StringIO()):
        lines = [(item, bench.line()) for item in counted("batch sizes", "ab")]
    assert lines == [
        ("a", "earl bench engine, batch sizes: 0 of 2 in 0 s"),
        ("b", "earl bench engine, batch sizes: 1 of 2 in 0 s, about 0 s left"),
    ]


def test_phases_outside_of_a_benchmark_are_ignored() -> None:
    phase("nobody is told")
    with view_drawn():
        assert list(counted("letters", "ab")) == ["a", "b"]


def test_notices_come_while_the_block_runs_and_end_with_it() -> None:
    terminal = Terminal()
    with notices_shown(Progress("demo", Clock()), every_s=0.001, file=terminal):
        phase("seed 0")
        assert terminal.next_line() == "earl bench demo, seed 0: 0 s"
        threads = [thread.name for thread in threading.enumerate()]
    assert "notices" in threads
    assert "notices" not in [thread.name for thread in threading.enumerate()] and IN_PROGRESS.get() is None


def test_nothing_is_written_and_no_thread_started_where_there_is_no_terminal() -> None:
    pipe = io.StringIO()
    with notices_shown(Progress("demo", Clock()), every_s=0.001, file=pipe):
        assert "notices" not in [thread.name for thread in threading.enumerate()]
        phase("seed 0")
    assert not pipe.getvalue()


def test_a_block_with_a_view_of_its_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, bench = Terminal(), Progress("demo", Clock())
    monkeypatch.setattr(sys, "stderr", terminal)
    lines: list[str] = []

    def repeating(line, **_):
        lines.append(line())
        with view_drawn():
            lines.append(line())
        lines.append(line())
        return nullcontext()

    monkeypatch.setattr(progress, "repeating", repeating)
    with notices_shown(bench):
        pass
    notice = "earl bench demo: 0 s"
    assert lines == [notice, "", notice] and terminal.getvalue() == f"{notice}\n"


def test_every_benchmark_has_progress_and_its_json_is_alone_on_standard_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = typer.Typer()
    lines: list[str] = []

    @app.command(cls=RecordedCommand)
    def fast(results: Path) -> None:
        bench = IN_PROGRESS.get()
        assert bench is not None
        lines.append(bench.line())
        print("{}")

    monkeypatch.setattr(execution, "checkout", lambda: Checkout(None))
    outcome = CliRunner().invoke(app, ["elsewhere"], catch_exceptions=False)
    assert outcome.stdout == "{}\n" and not outcome.stderr
    assert len(lines) == 1 and lines[0].startswith("earl bench fast: ")
