"""The views of a run whose step takes long: what it waits for is told again and again."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable
from dataclasses import replace

import pytest
from rich.console import Console

from earl.cli.lib.notices import NOTICE_S
from earl.cli.run.live_view import LiveView
from earl.cli.run.plain_view import PLAIN_EVERY_S, LoggedView, PlainView
from earl.stack.status import ProcessState, RunStatus

FIRST_STEP = RunStatus(run="smollm2", phase="train", steps=60, version=1)


class Ticking:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def shown(status: RunStatus, spent_s: float, **figures: float) -> RunStatus:
    figures = {"step_spent_s": spent_s, "step_played": 20.0, "step_episodes": 64.0, **figures}
    return replace(status, metrics=figures)


def told(statuses: list[tuple[float, RunStatus]]) -> list[str]:
    """The lines of statuses that came at these seconds."""
    lines, clock = io.StringIO(), Ticking()
    view = PlainView(lines, now_s=clock)
    for clock.now_s, status in statuses:
        view.update((), status)
    return [line.split("] ")[1] for line in lines.getvalue().splitlines()]


def test_the_first_step_is_never_silent_though_nothing_changes():
    lines = told([(second / 4, shown(FIRST_STEP, second / 4)) for second in range(4 * 60)])
    assert lines[0].startswith("train 0/60, version 1")
    assert lines[1] == "train 0/60, step 1: 20 of 64 episodes played, 0:05 so far"
    assert len(lines) == 1 + 59 // NOTICE_S and NOTICE_S < 10 and PLAIN_EVERY_S < 10


def test_time_left_alone_is_no_news_and_is_told_with_the_step():
    status = replace(FIRST_STEP, step=4)
    lines = told(
        [(float(s), shown(status, float(s), phase_left_s=3600.0 - s, step_left_s=30.0 - s)) for s in range(9)]
    )
    assert lines[0].startswith("train 4/60, about 1:00:00 left, version 1") and len(lines) == 2
    assert lines[1] == (
        "train 4/60, about 59:55 left, step 5: 20 of 64 episodes played, 0:05 so far, about 0:25 left"
    )


def logged(caplog: pytest.LogCaptureFixture, statuses: Iterable[tuple[float, RunStatus, str]]) -> list[float]:
    """The seconds at which a launcher's log gets a line; the trainer is in the given state."""
    clock, at_s = Ticking(), list[float]()
    view = LoggedView(clock)
    with caplog.at_level(logging.INFO):
        for clock.now_s, status, state in statuses:
            caplog.clear()
            view.update([ProcessState("trainer", state, clock.now_s, 0)], status)
            at_s += [clock.now_s] * len(caplog.records)
    return at_s


def test_a_log_gets_fewer_lines_while_nothing_changes(caplog: pytest.LogCaptureFixture):
    later = replace(FIRST_STEP, step=1, version=2)
    hour = [(float(s), shown(FIRST_STEP, float(s)), "ready") for s in range(3600)]
    after = [(float(s), shown(later, s - 3600.0), "ready") for s in range(3600, 3691)]
    # The first second has the trainer's state and the phase.
    assert logged(caplog, [*hour, *after]) == [
        0,
        0,
        30,
        90,
        210,
        450,
        930,
        1530,
        2130,
        2730,
        3330,
        3600,
        3630,
        3690,
    ]


def test_seconds_of_a_start_alone_are_no_news(caplog: pytest.LogCaptureFixture):
    starting = [(float(s), shown(FIRST_STEP, 0.0), "starting") for s in range(100)]
    assert logged(caplog, starting) == [0, 0, 30, 90]


# A process that has been starting for 4 s; seconds that its last start took, and the line's times.
STARTS = [
    (0.0, "4 s of at most 60 s"),
    (27.5, "4 s, about 24 s left"),
    (3.0, "4 s of at most 60 s, the last start took 3 s"),
]


@pytest.mark.parametrize(("usual_s", "times"), STARTS)
def test_a_start_says_how_far_it_is_and_how_long_still(usual_s: float, times: str):
    lines, clock = io.StringIO(), Ticking()
    process = ProcessState("model", "starting", 4.0, 0, usual_s=usual_s, most_s=60.0)
    view = PlainView(lines, now_s=clock)
    for clock.now_s in (0.0, 5.0):
        view.update([process], RunStatus(run="first"))
    assert lines.getvalue().splitlines()[-1].endswith(f"waiting for model (starting {times})")
    console = Console(file=io.StringIO(), width=80, record=True)
    screen = LiveView(console)
    screen.update([process], RunStatus(run="first"))
    console.print(screen._render())
    assert times in console.export_text()


def test_a_run_that_has_ended_says_that_its_workers_save():
    ended = replace(FIRST_STEP, done=True, message="all 60 steps are trained")
    assert told([(0.0, ended), (6.0, ended)])[1] == ("all 60 steps are trained: the workers save and exit")


def test_the_live_view_has_the_step_below_the_phase():
    console = Console(file=io.StringIO(), width=80, record=True)
    view = LiveView(console)
    view.update((), shown(FIRST_STEP, 12.0, step_left_s=25.0))
    console.print(view._render())
    lines = console.export_text().splitlines()
    phase = next(number for number, line in enumerate(lines) if "0/60" in line)
    assert lines[phase + 1].rstrip() == "step 1: 20 of 64 episodes played, 0:12 so far, about 0:25 left"
