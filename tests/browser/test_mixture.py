"""A run of two environments in a real browser: their table, and their figures among the metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from earl.cli.report.page import write_report
from tests.browser.test_dashboard_page import LOW_CONTRAST, UNNAMED
from tests.support.browser import chromium, opened, until
from tests.support.dashboard import Served
from tests.support.recorded import recorded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

DIGITS = "relay/v1.5+digits"
LABELS = (DIGITS, "self play")
OPTIONS = "[...document.querySelectorAll('#metric-names option')].map((option) => option.value)"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as started:
        yield started


@asynccontextmanager
async def shown(
    browser: Browser, directory: Path, where: str, width: str = "laptop", scheme: str = "light"
) -> AsyncIterator[Page]:
    """The page of the run, or its report."""
    if where == "page":
        async with Served(directory) as served, drawn(browser, served.links[-1], width, scheme) as page:
            yield page
    else:
        async with drawn(browser, write_report(directory).as_uri(), width, scheme) as page:
            yield page


@asynccontextmanager
async def drawn(browser: Browser, link: str, width: str, scheme: str) -> AsyncIterator[Page]:
    async with opened(browser, link, width=width, scheme=scheme) as page:
        await page.wait_for_selector("#curves .card:not(.without) canvas")
        await page.wait_for_selector("#explorer canvas")
        await page.wait_for_selector(".detail .turn")
        yield page


@pytest.mark.parametrize(("width", "scheme"), [("laptop", "light"), ("phone", "dark"), ("small", "light")])
@pytest.mark.parametrize("where", ["page", "report"])
async def test_each_environment_has_a_row(
    browser: Browser, tmp_path: Path, where: str, width: str, scheme: str
):
    recorded(tmp_path, steps=12, environments=LABELS)
    async with shown(browser, tmp_path, where, width, scheme) as page:
        table = page.get_by_role("table").filter(has_text="environment").first
        titles = await page.locator("#mixture .card:not(.seats) th").all_text_contents()
        assert titles == [
            "environment", "weight", "trained on", "win rate", "evaluated (final)", "gain", "length",
            "staleness", "ended",
        ]  # fmt: skip
        rows = [
            dict(zip(titles, await row.locator("td").all_text_contents(), strict=True))
            for row in await page.locator("#mixture .card:not(.seats) tbody tr").all()
        ]
        assert [row["environment"] for row in rows] == list(LABELS)
        assert [(row["weight"], row["trained on"]) for row in rows] == [("33 %", "50 %"), ("67 %", "50 %")]
        assert [row["staleness"] for row in rows] == ["1 (most 1)", "0 (most 0)"]
        assert rows[0]["ended"].startswith("ok 380, truncated 4, infrastructure")
        assert rows[1]["ended"] == "ok 382, truncated 2"
        for row in rows:
            assert row["evaluated (final)"].count("%") == 3 and "[" in row["evaluated (final)"]
            assert row["gain"].startswith("+0.375 [+0.") and "(most" in row["length"]
        assert await table.get_by_role("row").count() == 3, "a screen reader has the rows at every width"
        seats = await page.locator("#mixture .seats tbody tr").all()
        texts = [await seat.locator("td").all_text_contents() for seat in seats]
        assert [text[:2] for text in texts] == [["self play", "0"], ["self play", "1"]]
        assert all(text[2].endswith("%") for text in texts)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for box in await page.locator("#mixture .scroll").all():
            wide = await box.evaluate("(box) => box.scrollWidth - box.clientWidth")
            assert wide <= 0, "nothing of it is beyond the edge"
        contrast = await page.evaluate(LOW_CONTRAST)
        assert contrast["texts"] > 150 and contrast["low"] == []
        heard = await page.evaluate(UNNAMED)
        assert heard["unnamed"] == [] and heard["twice"] == [] and heard["unlabelled"] == 0


@pytest.mark.parametrize("where", ["page", "report"])
async def test_figures_of_environments_are_chosen_by_readable_names(
    browser: Browser, tmp_path: Path, where: str
):
    recorded(tmp_path, steps=12, environments=LABELS)
    async with shown(browser, tmp_path, where) as page:
        await until(page, f"{OPTIONS}.length > 10")
        options = await page.evaluate(OPTIONS)
        assert not [name for name in options if name.startswith(("environments.", "seats."))]
        for name in (
            "each environment: mean reward",
            "each environment: mean staleness",
            f"{DIGITS}: win rate",
            "self play: truncated",
            "self play, seat 1: win rate",
            "seat 0: mean reward",
            "loss",
        ):
            assert name in options, name
        plot = "document.querySelector('#explorer .plot').ariaLabel"
        search = page.get_by_label("add a metric")
        await search.fill("each environment: mean staleness")
        await search.press("Enter")
        await until(page, f"{plot}.includes('self play: mean staleness')")
        assert f"{DIGITS}: mean staleness" in await page.evaluate(plot)
        await search.fill("self play, seat 1: win rate")
        await search.press("Enter")
        await until(page, f"{plot}.includes('self play, seat 1: win rate')")
        chips = page.locator("#explorer .chips button")
        assert await chips.count() == 4  # with the one that is there at first
        await chips.filter(has_text="self play: mean staleness").click()
        await until(page, f"!{plot}.includes('self play: mean staleness')")
        # A name as it is in the file is understood, too.
        await search.fill("environments.self play.turns_mean")
        await search.press("Enter")
        await until(page, f"{plot}.includes('self play: mean turns')")


@pytest.mark.parametrize("where", ["page", "report"])
async def test_a_run_of_one_environment_has_no_such_table(browser: Browser, tmp_path: Path, where: str):
    recorded(tmp_path, steps=4)
    async with shown(browser, tmp_path, where) as page:
        await until(page, f"{OPTIONS}.length > 10")
        assert await page.locator("#mixture .card").count() == 0
        assert await page.locator("#mixture").is_hidden()
        assert not [name for name in await page.evaluate(OPTIONS) if "environment" in name]
