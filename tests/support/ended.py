"""The end of a run, told in the same words wherever a person looks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from earl.cli.lib.run_directory import config_of
from earl.cli.lib.snapshot import RunMonitor
from earl.cli.top.screen import Top
from earl.dashboard.codec_services import Services
from earl.dashboard.live import Live
from earl.rpc.access import OPEN
from tests.support.launched import earl_here
from tests.support.report_file import report_data
from tests.unit.cli.top.test_top import shown_with

# A sentence that quotes a log is in one line of so wide a terminal.
COLUMNS = 400


def assert_told_everywhere(directory: Path, reason: str, exit_code: int) -> None:
    """Asserts that every view of a run that has ended gives this reason. exit_code: that of `earl status`."""

    def earl(*words: str) -> str:
        done = earl_here(directory.parent, *words, variables={"COLUMNS": str(COLUMNS)})
        assert done.returncode == (exit_code if words[0] == "status" else 0), done.stderr
        return done.stdout

    run = str(directory)
    assert reason in earl("status", run)
    assert json.loads(earl("status", run, "--json"))["why_ended"] == reason
    assert json.loads(earl("stop", run, "--json"))["why_ended"] == reason
    earl("report", run)
    assert report_data(directory / "report.html")["sections"]["run"]["why"] == reason
    assert asyncio.run(on_page(directory)) == reason
    assert asyncio.run(on_screen(directory, reason))


async def on_screen(directory: Path, words: str) -> str:
    """The screen of `earl top` once it has these words."""
    app = Top(RunMonitor.of_run(directory), every_s=0.2)
    async with app.run_test(size=(COLUMNS, 60)) as pilot:
        return await shown_with(app, pilot, words)


async def on_page(directory: Path) -> str:
    """The reason that the page shows for the end of a run."""
    config = config_of(directory)
    services = Services(config.scheduler.bind, config.gateway.bind, OPEN)
    try:
        sections = await Live(directory, config, services).sections({})
    finally:
        await services.close()
    assert sections["run"]["state"] == "ended"
    return sections["run"]["why"]


def in_scheduler_log(directory: Path, reason: str) -> bool:
    """Returns whether the scheduler logged this reason for the end of its run."""
    logged = earl_here(directory.parent, "logs", str(directory), "scheduler").stdout
    return f"the run has ended: {reason}" in logged
