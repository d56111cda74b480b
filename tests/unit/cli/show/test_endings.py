"""The reason why a run ends, in `earl status` and `earl top`: red is for what is wrong alone."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text
from textual.widgets import Static

from earl.cli.lib.snapshot import RunSnapshot, RunState
from earl.cli.show import panels
from earl.cli.show.status import parts
from earl.cli.top.screen import Top
from earl.stack.status import RunStatus
from tests.support.snapshots import SNAPSHOT, STATUS, Snapshots

ALL = "all 140 steps are trained"
LIMIT = "the time limit of 60 s (scheduler.train_limit_s) was reached after 30 of 140 steps"
TRAINED = replace(STATUS, phase="done", step=140, done=True, message=ALL)
LIMITED = replace(STATUS, phase="done", done=True, message=LIMIT)
STOPPED = replace(STATUS, done=True, message="stopped by Ctrl-C")
SAVES = "the workers save and exit"
LOST = {"error": "EngineLost", "message": "engine 0 is gone"}


def ended(state: RunState, status: RunStatus, **changes: object) -> RunSnapshot:
    return replace(SNAPSHOT, state=state, status=status, **changes)


CASES = [
    (ended(RunState.RUNNING, STATUS), "", ""),
    (ended(RunState.RUNNING, TRAINED), f"{ALL}: {SAVES}", "green"),
    (ended(RunState.COMPLETE, TRAINED), f"complete: {ALL}", "green"),
    (ended(RunState.RUNNING, LIMITED), f"{LIMIT}: {SAVES}", "yellow"),
    (ended(RunState.COMPLETE, LIMITED), f"complete: {LIMIT}", "yellow"),
    (ended(RunState.RUNNING, STOPPED), f"stopped by Ctrl-C: {SAVES}", "yellow"),
    (ended(RunState.STOPPED, STOPPED), "stopped by Ctrl-C after 30 of 140 steps", "yellow"),
    (
        ended(RunState.FAILED, STATUS, failure=LOST),
        "failed after 30 of 140 steps: EngineLost: engine 0 is gone",
        "red",
    ),
]


@pytest.mark.parametrize(("snapshot", "reason", "style"), CASES)
def test_a_reason_has_the_style_of_its_outcome(snapshot: RunSnapshot, reason: str, style: str):
    assert panels.ending_line(snapshot) == (reason, style)
    lines = [part for part in parts(snapshot, 120) if isinstance(part, Text)]
    assert [(line.plain, line.style) for line in lines if line.plain == reason] == [(reason, style)] * bool(
        reason
    )
    assert any(line.style == "red" for line in lines) == (style == "red")


def test_problems_are_red_beside_a_reason_that_is_not():
    silent = {"gateway": "no answer within 2 s"}
    lines = [
        part for part in parts(ended(RunState.RUNNING, TRAINED, silent=silent), 120) if isinstance(part, Text)
    ]
    styles = {line.plain: line.style for line in lines}
    assert styles[f"{ALL}: {SAVES}"] == "green"
    assert styles["gateway does not answer: no answer within 2 s"] == "red"


def test_the_sentence_of_a_shutdown_is_wrapped_on_a_narrow_screen():
    console = Console(file=io.StringIO(), width=60, record=True)
    for part in parts(ended(RunState.RUNNING, LIMITED), 60):
        console.print(part)
    assert f"{LIMIT}: {SAVES}" in " ".join(console.export_text().split())


async def test_the_screen_keeps_its_red_lines_for_problems():
    silent = {"gateway": "no answer within 2 s"}
    app = Top(Snapshots([ended(RunState.RUNNING, TRAINED, silent=silent)]), every_s=60.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        ending, problems = (app.query_one(name, Static) for name in ("#ending", "#problems"))
        assert ending.content == Text(f"{ALL}: {SAVES}", "green")
        assert str(problems.content) == "gateway does not answer: no answer within 2 s"
        assert problems.styles.color != ending.styles.color
