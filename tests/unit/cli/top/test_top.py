"""`earl top` under textual's own pilot: what stands on the screen, keys, and a run that falls silent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from textual.widgets import Static

from earl.cli.lib.gateway_codec import HostLatency
from earl.cli.lib.snapshot import RunSnapshot, RunState
from earl.cli.top.screen import Top, details
from earl.cli.top.section import KEPT_CHANGES, TableSection
from tests.support.snapshots import GAMES, ROLLOUT, SNAPSHOT, STATUS, Snapshots


def counts(quick: int, slow: int) -> tuple[int, ...]:
    """So many steps of up to 1 ms, and of up to 128 ms."""
    return (quick, *(0,) * 6, slow, *(0,) * 11)


STEPS = HostLatency(1000, 0.0004, 0.001, counts(1000, 0), 0.2)


def screen_of(app: Top) -> list[str]:
    """Returns what stands on the screen, line by line, without colours."""
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
    app = Top(Snapshots([SNAPSHOT]), every_s=60.0)
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
            "48 playing, oldest 1:15 rollout-0",
        ):
            assert shown in text, shown
        if size[1] > 24:
            for shown in (
                "1.2 / 3.1 ms",
                "48/64",
                "playing longest",
                "lengths grew",
                "rollout-0",
                "48 of 128 open",
            ):
                assert shown in text, shown
        assert all(len(line) <= size[0] for line in screen_of(app))


@pytest.mark.parametrize("size", [(60, 24), (80, 24), (120, 40), (200, 60)], ids=str)
async def test_the_first_screen_answers_at_every_width(size: tuple[int, int]):
    step = {"step_spent_s": 12.0, "step_played": 64.0, "step_episodes": 64.0, "step_left_s": 25.0}
    ledger = replace(STATUS.ledger, planned=64)
    metrics = {**STATUS.metrics, **step, "phase_left_s": 3723.0}
    status = replace(STATUS, metrics=metrics, ledger=ledger)
    silent = {"gateway": "no answer within 2 s"}
    app = Top(Snapshots([replace(SNAPSHOT, status=status, silent=silent)]), every_s=60.0)
    async with app.run_test(size=size) as pilot:
        await app.workers.wait_for_complete()
        await shown_with(app, pilot, "Pause")
        await pilot.pause()
        lines = screen_of(app)
        text = " ".join(" ".join(lines).split())
        assert max(map(len, lines)) <= size[0] and "…" not in text
        # Is it learning, how fast, how long still, is anything wrong; and how to see the rest.
        for answer in (
            "+0.250",
            "tokens/s 4,310",
            "30/140, about 1:02:03 left",
            "step 31: training on 64 episodes, 0:12 so far, about 0:25 left",
            "gateway does not answer: no answer within 2 s",
            "PgUp/PgDn Scroll",
        ):
            assert answer in text, answer


async def test_a_mixture_and_its_seats_are_on_the_screen():
    figures = {"sequences": 8.0, "reward_mean": 0.5, "staleness_mean": 1.25, "staleness_max": 2.0}
    metrics = {f"environments.as x.{name}": value for name, value in figures.items()}
    metrics |= {f"environments.self.{name}": 0.25 for name in (*figures, "seats.0.reward_mean")}
    status = replace(STATUS, metrics={**STATUS.metrics, **metrics})
    app = Top(Snapshots([replace(SNAPSHOT, status=status)]), every_s=60.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await app.workers.wait_for_complete()
        text = await shown_with(app, pilot, "as x")
        assert "1.25 (max 2)" in text and "self-play of self: seat 0 scores +0.250" in text


class Painted(Top):
    """Remembers which lines of the screen were drawn, update by update."""

    def __init__(self, source: Any) -> None:
        super().__init__(source, every_s=60.0)
        self.updates: list[set[int]] = []

    def _display(self, screen: Any, renderable: Any) -> None:
        if renderable is not None:
            spans = getattr(renderable, "spans", None)  # of a whole screen there are none
            self.updates.append(
                {y for y, *_ in spans} if spans is not None else set(range(screen.size.height))
            )
        super()._display(screen, renderable)

    async def refreshed(self, pilot: Any) -> list[set[int]]:
        """Returns what is drawn when r is pressed."""
        self.updates.clear()
        await pilot.press("r")
        await self.workers.wait_for_complete()
        await pilot.pause()
        return self.updates


async def test_a_snapshot_like_the_one_before_draws_nothing():
    app = Painted(Snapshots([SNAPSHOT]))
    async with app.run_test(size=(120, 40)) as pilot:
        await app.workers.wait_for_complete()
        await shown_with(app, pilot, "Pause")
        await pilot.pause()
        assert await app.refreshed(pilot) == []


@pytest.mark.slow
async def test_only_what_changed_is_written():
    later = replace(STATUS, workers=(replace(ROLLOUT, running=50), *STATUS.workers[1:]))
    app = Painted(Snapshots([SNAPSHOT, replace(SNAPSHOT, status=later)]))
    async with app.run_test(size=(180, 60)) as pilot:
        await app.workers.wait_for_complete()
        await shown_with(app, pilot, "Pause")
        workers = app.query_one("#workers", TableSection)
        workers.move_cursor(row=1)
        await pilot.pause()
        (lines,) = await app.refreshed(pilot)
        assert [screen_of(app)[y].split()[:5] for y in lines] == [
            ["rollout-0", "rollout", "dp2", "31", "50/64"]
        ]
        assert workers.cursor == 1


async def test_rows_that_come_and_go_do_not_move_the_tables_below():
    fewer = replace(SNAPSHOT, leases=SNAPSHOT.leases[:1])
    gone = [replace(SNAPSHOT, leases=(), elapsed_s=62.0 + i) for i in range(KEPT_CHANGES)]
    app = Painted(Snapshots([SNAPSHOT, fewer, *gone]))
    async with app.run_test(size=(120, 50)) as pilot:
        await app.workers.wait_for_complete()
        await shown_with(app, pilot, "environment  ")
        await pilot.pause()
        place = next(y for y, line in enumerate(screen_of(app)) if "environments" in line)
        await app.refreshed(pilot)
        await app.refreshed(pilot)
        after = screen_of(app)
        assert "environments" in after[place] and "1:15" not in "\n".join(after[place - 5 : place])
        for _ in gone:
            await app.refreshed(pilot)
        assert "environments" not in screen_of(app)[place]  # for good


class Stuck(Snapshots):
    """Its scheduler takes its time."""

    async def snapshot(self) -> RunSnapshot:
        await asyncio.Event().wait()
        return await super().snapshot()


async def test_keys_act_while_a_snapshot_is_awaited():
    app = Top(Stuck([SNAPSHOT]), every_s=60.0)
    async with app.run_test(size=(120, 40)) as pilot:
        app.show(SNAPSHOT)
        await shown_with(app, pilot, "rollout-0")
        await pilot.press("space")
        assert app.paused and "(paused)" in screen_of(app)[0]
        app.query_one("#workers", TableSection).focus()
        await pilot.press("enter")
        assert "kv_used_fraction" in await shown_with(app, pilot, "kv_used_fraction")
        await pilot.press("escape", "q")
    assert not app.is_running


async def test_arrows_go_through_all_tables_and_page_keys_scroll():
    app = Top(Snapshots([SNAPSHOT]), every_s=60.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.workers.wait_for_complete()
        text = await shown_with(app, pilot, "Pin/unpin")
        assert "PgUp/PgDn Scroll" in text and "Tab Table" in text and "endpoints" not in text
        await pilot.pause()
        assert app.focused is not None and app.focused.id == "stages"
        await pilot.press("down", "down")
        assert app.focused.id == "learning"
        await pilot.press("up")
        stages = app.query_one("#stages", TableSection)
        assert app.focused is stages and stages.cursor == 1
        for _ in range(4):
            await pilot.press("pagedown")
        assert "gateway metrics" in await shown_with(app, pilot, "gateway metrics")


async def test_a_scheduler_that_does_not_answer_is_a_remark_and_what_was_known_stays():
    silent = replace(SNAPSHOT, silent={"scheduler": "GetStatus gave no answer within 2 s"})
    ended = replace(
        SNAPSHOT, state=RunState.FAILED, environments=(), failure={"error": "EngineLost", "message": "gone"}
    )
    snapshots = Snapshots([silent, ended])
    app = Top(snapshots, every_s=60.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = await shown_with(app, pilot, "5,120")
        assert "scheduler does not answer: GetStatus gave no answer within 2 s" in text
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        await shown_with(app, pilot, "EngineLost: gone")
        hidden = {section.id for section in app.query(TableSection) if not section.display}
        assert "environments" in hidden and "workers" not in hidden
    assert snapshots.closed


async def test_latencies_are_those_since_the_look_before():
    slow = replace(GAMES, step=replace(STEPS, counts=counts(1000, 5), p99_s=0.001))
    snapshots = [replace(SNAPSHOT, environments=(one,)) for one in (replace(GAMES, step=STEPS), slow)]
    app = Top(Snapshots(snapshots), every_s=60.0)
    async with app.run_test(size=(180, 60)) as pilot:
        await app.workers.wait_for_complete()
        await shown_with(app, pilot, "0.4 / 1.0 ms")
        await pilot.press("r")
        await app.workers.wait_for_complete()
        # Of 1,005 steps five took long, but all of those that came after the first snapshot.
        await shown_with(app, pilot, "128.0 / 128.0 ms")


@pytest.mark.slow
async def test_keys_pause_pin_and_show_a_worker():
    snapshots = Snapshots([SNAPSHOT])
    app = Top(snapshots, every_s=60.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.press("space")
        assert app.paused and "(paused)" in str(app.query_one("#headline", Static).render())
        taken = snapshots.taken
        app._tick()
        assert snapshots.taken == taken
        await pilot.press("space")
        assert not app.paused
        app.query_one("#stages", TableSection).move_cursor(row=1)
        await pilot.press("p")
        await app.workers.wait_for_complete()
        assert snapshots.asked == [("trainer", False)]
        app.query_one("#workers", TableSection).focus()
        await pilot.press("enter")
        await pilot.pause()
        shown = str(app.screen.query_one("#details", Static).render())
        assert shown.splitlines() == details(ROLLOUT) and "kv_used_fraction" in shown
        app.show(SNAPSHOT)  # what lies below goes on
        await pilot.press("escape")
        assert len(app.screen_stack) == 1
