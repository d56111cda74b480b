"""`earl top` under textual's own pilot: what stands on the screen, keys, and a run that falls silent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from textual.widgets import DataTable, Static

from earl.cli.lib.gateway_codec import Latency
from earl.cli.lib.snapshot import State
from earl.cli.top.screen import Section, Top, details
from tests.support.looks import GAMES, LOOK, ROLLOUT, STATUS, Looks


def counts(quick: int, slow: int) -> tuple[int, ...]:
    """So many steps of up to 1 ms, and of up to 128 ms."""
    return (quick, *(0,) * 6, slow, *(0,) * 11)


STEPS = Latency(1000, 0.0004, 0.001, counts(1000, 0), 0.2)


def screen_of(app: Top) -> list[str]:
    """What stands on the screen, line by line, without colours."""
    lines = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


async def shown_with(app: Top, pilot: Any, word: str) -> str:
    """The screen once it has the word: widgets come one after the other."""
    async with asyncio.timeout(10):
        while word not in (text := "\n".join(screen_of(app))):
            await pilot.pause(0.02)
    return text


@pytest.mark.parametrize("size", [(80, 24), (180, 60)], ids=["80x24", "180x60"])
async def test_the_screen_holds_what_decides(size: tuple[int, int]):
    app = Top(Looks([LOOK]), every_s=60.0)
    async with app.run_test(size=size) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = await shown_with(app, pilot, "Pause")
        for shown in (
            "growing  running, reinforcement learning 30/140, version 31, 1:01",
            "tokens/s 4,310",
            "5,120",
            "9,000",
            "0.50 (max 1)",
            "48 leased, oldest 1:15 rollout-0",
        ):
            assert shown in text, shown
        if size[1] > 24:
            for shown in (
                "1.2 / 3.1 ms",
                "48/64",
                "oldest leases",
                "lengths grew",
                "rollout-0",
                "48 of 128 open",
            ):
                assert shown in text, shown
        assert all(len(line) <= size[0] for line in screen_of(app))


@pytest.mark.slow
async def test_only_what_changed_is_written():
    later = replace(STATUS, workers=(replace(ROLLOUT, running=50), *STATUS.workers[1:]))
    app = Top(Looks([LOOK, replace(LOOK, status=later)]), every_s=60.0)
    async with app.run_test(size=(180, 60)) as pilot:
        await app.workers.wait_for_complete()
        grid = app.query_one("#workers", DataTable)
        grid.move_cursor(row=1)
        columns = list(grid.columns)
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert grid.get_cell("rollout-0", "busy").plain == "50/64"
        assert grid.cursor_row == 1 and list(grid.columns) == columns


async def test_a_scheduler_that_does_not_answer_is_a_remark_and_what_was_known_stays():
    silent = replace(LOOK, silent={"scheduler": "GetStatus gave no answer within 2 s"})
    ended = replace(
        LOOK, state=State.FAILED, environments=(), failure={"error": "EngineLost", "message": "gone"}
    )
    looks = Looks([silent, ended])
    app = Top(looks, every_s=60.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = await shown_with(app, pilot, "5,120")
        assert "scheduler does not answer: GetStatus gave no answer within 2 s" in text
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        await shown_with(app, pilot, "EngineLost: gone")
        hidden = {section.name_of_it for section in app.query(Section) if not section.display}
        assert "environments" in hidden and "workers" not in hidden
    assert looks.closed


async def test_latencies_are_those_since_the_look_before():
    slow = replace(GAMES, step=replace(STEPS, counts=counts(1000, 5), p99_s=0.001))
    looks = [replace(LOOK, environments=(one,)) for one in (replace(GAMES, step=STEPS), slow)]
    app = Top(Looks(looks), every_s=60.0)
    async with app.run_test(size=(180, 60)) as pilot:
        await app.workers.wait_for_complete()
        await shown_with(app, pilot, "0.4 / 1.0 ms")
        await pilot.press("r")
        await app.workers.wait_for_complete()
        # Of 1,005 steps five took long, but all of those that came after the first look.
        await shown_with(app, pilot, "128.0 / 128.0 ms")


@pytest.mark.slow
async def test_keys_pause_pin_and_show_a_worker():
    looks = Looks([LOOK])
    app = Top(looks, every_s=60.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.press("space")
        assert app.paused and "(paused)" in str(app.query_one("#headline", Static).render())
        taken = looks.taken
        app._tick()
        assert looks.taken == taken
        await pilot.press("space")
        assert not app.paused
        app.query_one("#stages", DataTable).move_cursor(row=1)
        await pilot.press("p")
        await app.workers.wait_for_complete()
        assert looks.asked == [("trainer", False)]
        app.query_one("#workers", DataTable).focus()
        await pilot.press("enter")
        await pilot.pause()
        shown = str(app.screen.query_one("#details", Static).render())
        assert shown.splitlines() == details(ROLLOUT) and "kv_used_fraction" in shown
        app.show(LOOK)  # what lies below goes on
        await pilot.press("escape")
        assert len(app.screen_stack) == 1
