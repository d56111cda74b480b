"""The report in a real browser, opened from its file: all of the page is there, and nothing is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page
from typer.testing import CliRunner

from earl.cli.compare.command import app as compare
from earl.cli.report.page import write_report
from services.env_gateway.fault_file import FaultFile
from services.env_gateway.state.faults import FaultTexts
from tests.browser.test_dashboard_page import EVIL, LOW_CONTRAST, UNNAMED
from tests.support.browser import chromium, opened, until
from tests.support.recorded import recorded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ENDING = "</script><script>window.owned = 1</script><!--<script>"
# A request, and a picture that the file does not hold: its own policy stops both.
FETCHED = "fetch('data:text/plain,x').then(() => 'answered', () => 'refused')"
LOADED = """new Promise((done) => {
  const image = new Image();
  image.onload = () => done("loaded");
  image.onerror = () => done("refused");
  image.src = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";
})"""
# Range of the horizontal axis of every chart, a list a row.
RANGES = """rows => rows.map((row) =>
  [...row.querySelectorAll(".card:not(.without) .plot")].map((plot) => plot.dataset.range))"""
# Charts whose canvas has nothing but one colour.
BLANK = """() => [...document.querySelectorAll(".card:not(.without) canvas")].filter((canvas) => {
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size < 3;
}).length"""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


@pytest.fixture
def report(tmp_path: Path) -> str:
    recorded(tmp_path, steps=24, text=f"{ENDING}{EVIL} step-STEP", drafts=True)
    faults, file = FaultTexts(), FaultFile(tmp_path)
    faults.note(("host-1", "open_spiel/tic_tac_toe"), ENDING + EVIL)
    file.quarantined("open_spiel/tic_tac_toe", "host-1", ENDING + EVIL)
    file.update(faults)
    file.close()
    return write_report(tmp_path).as_uri()


async def filled(page: Page) -> None:
    await page.wait_for_selector("#curves .card:not(.without) canvas")
    await page.wait_for_selector("#explorer canvas")
    await page.wait_for_selector("#map canvas")
    await page.wait_for_selector("#decisions canvas")
    await page.wait_for_selector("#busy canvas")
    await page.wait_for_selector(".detail .turn")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", ["laptop", "small"])
async def test_all_of_it_is_drawn_from_the_file_alone(browser: Browser, report: str, width: str, scheme: str):
    async with opened(browser, report, width=width, scheme=scheme, touch=width == "small") as page:
        await filled(page)
        assert await page.locator(".card:not(.without) canvas").count() > 12
        assert await page.evaluate(BLANK) == 0
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        said = await page.locator("main").text_content() or ""
        assert await page.locator("#faults tbody tr").count() == 1
        assert "Faults of environments" in said and "host-1" in said and "Every attempt" in said
        for words in ("Not measured", "KL to the reference", "final", "Parallelism of rollout", "Win rate"):
            assert words in said, words
        drafts = page.locator("#machine .card:not(.without)", has_text="Accepted drafts")
        assert await drafts.locator(".legend span").all_text_contents() == ["all", "task", "context"]
        assert await page.locator("#evaluations tbody tr").count() == 2
        contrast = await page.evaluate(LOW_CONTRAST)
        assert contrast["texts"] > 150 and contrast["low"] == []
        heard = await page.evaluate(UNNAMED)
        assert heard["unnamed"] == [] and heard["pictures"] == 0 and heard["twice"] == []
        levels = heard["headings"]
        assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))


async def test_text_and_scripts_of_others_do_nothing(browser: Browser, report: str):
    async with opened(browser, report, expected="TrustedHTML") as page:
        await filled(page)
        said = await page.locator(".turn.user .said").first.text_content() or ""
        assert said.startswith(ENDING + "<script>window.owned") and "\x1b" not in said
        assert await page.evaluate("window.owned") is None
        assert await page.locator("main img").count() == 0
        fault = await page.locator("#faults tbody .wrap").first.text_content() or ""
        assert fault.startswith(ENDING + "<script>window.owned") and "\x1b" not in fault
        refused = await page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.name } }"
        )
        assert refused == "TypeError"
    async with opened(browser, report, expected="Content Security Policy") as page:
        await filled(page)
        assert await page.evaluate(FETCHED) == "refused" and await page.evaluate(LOADED) == "refused"


async def test_the_map_is_zoomed_read_and_reset(browser: Browser, report: str):
    async with opened(browser, report) as page:
        await filled(page)
        plot = page.locator("#map .plot")
        assert await plot.get_attribute("data-range") == "0 24"
        assert "Step 24" in (await plot.get_attribute("aria-label") or "")
        await plot.scroll_into_view_if_needed()
        box = await page.locator("#map .u-over").bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 100)
        assert "trajectories of" in (await page.locator("#tip").text_content() or "")
        await page.mouse.down()
        await page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 100, steps=4)
        await page.mouse.up()
        low, high = (await plot.get_attribute("data-range") or "").split()
        assert 5 <= float(low) <= 7 and 11 <= float(high) <= 13
        await page.locator("#map .u-over").dblclick()
        await until(page, "document.querySelector('#map .plot').dataset.range === '0 24'")
        await plot.focus()
        await page.keyboard.press("Home")
        assert "Step 1" in (await page.locator("#tip").text_content() or "")
        mark = page.locator("#decisions .mark").first
        await mark.focus()
        assert "lengths decide" in (await page.locator("#tip").text_content() or "")


async def test_conversations_and_metrics_are_found_without_a_server(browser: Browser, report: str):
    async with opened(browser, report) as page:
        await filled(page)
        rows = page.locator(".list button")
        assert await rows.count() == 28
        text = page.get_by_label("text", exact=True)
        await text.fill("Step-17")
        await text.press("Enter")
        await until(page, "document.querySelectorAll('.list button').length === 1")
        await text.fill("")
        await text.press("Enter")
        await until(page, "document.querySelectorAll('.list button').length === 28")
        await page.get_by_role("combobox", name="shown").select_option("training")
        await until(page, "document.querySelectorAll('.list button').length === 24")
        await page.get_by_label("first step").fill("20")
        await page.get_by_label("first step").press("Enter")
        await until(page, "document.querySelectorAll('.list button').length === 5")
        await page.get_by_role("combobox", name="shown").select_option("final")
        await page.get_by_label("first step").fill("")
        await page.get_by_label("first step").press("Enter")
        await until(page, "document.querySelectorAll('.list button').length === 2")
        await rows.first.click()
        await until(page, "document.querySelectorAll('.siblings button').length === 2")
        search = page.get_by_label("add a metric")
        await search.fill("entropy")
        await search.press("Enter")
        await until(page, "document.querySelector('#explorer .plot').ariaLabel.includes('entropy')")
        await page.locator("#panels summary").click()
        await page.wait_for_selector("#panels tbody tr")
        assert "scheduler.group_size" in (await page.locator("#panels").text_content() or "")


async def test_rewards_alone_are_scores_in_the_report(browser: Browser, tmp_path: Path):
    """Nothing says win rate where nothing is won or lost."""
    recorded(tmp_path, winners=False)
    async with opened(browser, write_report(tmp_path).as_uri()) as page:
        await page.wait_for_selector("#curves .card:not(.without) canvas")
        shown = await page.locator("main").inner_text()
        assert "evaluated score" in shown and "win rate" not in shown.lower()
        titles = await page.locator("#curves .card:visible h3").all_text_contents()
        assert "Score" in titles and "Reward" not in titles


async def test_compared_runs_have_the_same_axes(browser: Browser, tmp_path: Path):
    for name, steps in (("first", 24), ("second", 16)):
        (tmp_path / name).mkdir()
        recorded(tmp_path / name, steps=steps)
    file = tmp_path / "compare.html"
    runs = [str(tmp_path / "first"), str(tmp_path / "second")]
    result = CliRunner().invoke(compare, [*runs, "--html", str(file)])
    assert result.exit_code == 0, result.output
    for width in ("laptop", "small"):
        async with opened(browser, file.as_uri(), width=width) as page:
            await page.wait_for_selector("#together canvas")
            await page.wait_for_selector("#rows canvas")
            assert await page.evaluate(BLANK) == 0
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            ranges = await page.locator("#rows .row").evaluate_all(RANGES)
            assert len(ranges) >= 4 and all(len(row) == 2 and row[0] == row[1] for row in ranges)
            heard = await page.evaluate(UNNAMED)
            assert heard["unnamed"] == [] and heard["twice"] == []
