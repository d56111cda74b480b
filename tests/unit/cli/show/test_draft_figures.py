"""Every place that shows a run's drafts: one line while it runs, rows and curves of what it recorded."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from textual.widgets import Static

from earl.cli.compare.figures import MeasuredFigure
from earl.cli.compare.figures import figures as compared
from earl.cli.lib.status_text import drafts_line
from earl.cli.report.data import read_run
from earl.cli.report.page import write_report
from earl.cli.report.web_files import web_files
from earl.cli.show.status import rendered
from earl.cli.top.screen import Top
from earl.draft_figures import SOURCES, of_source
from earl.stack.status import RunStatus
from tests.support.recorded import recorded
from tests.support.report_file import report_data
from tests.support.snapshots import SNAPSHOT, STATUS, Snapshots

COUNTS = {
    "drafting_steps": 10_000.0, "drafting_tokens": 18_400.0, "drafted_tokens": 12_000.0,
    "accepted_tokens": 8_400.0,
}  # fmt: skip
LINE = "drafts: 70.0% of 12,000 tokens accepted, 1.84 tokens a step"


def drafting(**counts: float) -> RunStatus:
    return replace(STATUS, metrics={**STATUS.metrics, **counts})


def printed(status: RunStatus) -> str:
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(rendered(replace(SNAPSHOT, status=status)))
    return console.export_text()


def test_status_has_a_line_where_engines_draft():
    assert drafts_line(drafting(**COUNTS)) == LINE
    assert LINE in printed(drafting(**COUNTS)).splitlines()
    assert "drafts" not in printed(STATUS)
    nothing = drafting(drafting_steps=20.0, drafting_tokens=20.0, drafted_tokens=0.0, accepted_tokens=0.0)
    assert drafts_line(nothing) == "drafts: none so far, 1.00 tokens a step"


async def test_top_has_the_same_line():
    shown = []
    for status in (drafting(**COUNTS), STATUS):
        app = Top(Snapshots([replace(SNAPSHOT, status=status)]), every_s=60.0)
        async with app.run_test(size=(120, 40)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            place = app.query_one("#drafts", Static)
            shown.append((place.display, str(place.content)))
    assert shown == [(True, LINE), (False, "")]


def test_report_and_comparison_have_them(tmp_path: Path):
    recorded(tmp_path, steps=3, drafts=True)
    metrics = report_data(write_report(tmp_path))["metrics"]
    assert metrics["drafted_tokens"] == [800.0, 1600.0, 2400.0]
    assert metrics["drafts.task.accepted_tokens"] == [450.0, 900.0, 1350.0]
    shares = {"draft_acceptance": 0.625, "drafts.task.acceptance": 0.75, "drafts.context.acceptance": 0.25}
    for name, value in {"tokens_per_forward": 1.5, **shares}.items():
        assert metrics[name] == [value] * 3, name
    assert "drafts.environment.acceptance" not in metrics
    values = {figure.key: figure.of(read_run(tmp_path)) for figure in compared()}
    assert values["accepted_drafts"] == MeasuredFigure(0.625)
    assert values["tokens_per_forward"] == MeasuredFigure(1.5)


def test_without_drafts_there_is_nothing_to_draw(tmp_path: Path):
    recorded(tmp_path, steps=3)
    metrics = report_data(write_report(tmp_path))["metrics"]
    assert not [name for name in metrics if "draft" in name or "forward" in name]
    values = {figure.key: figure.of(read_run(tmp_path)) for figure in compared()}
    assert values["accepted_drafts"] is None and values["tokens_per_forward"] is None


def test_the_page_draws_what_is_recorded():
    page = web_files()["figures.js"].decode()
    names = ["tokens_per_forward", "draft_acceptance", *(of_source(name, "acceptance") for name in SOURCES)]
    assert all(f'"{name}"' in page for name in names)
