"""The dashboard in a real browser: what it shows, on every screen, to everybody, from a run's directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from playwright.async_api import Browser, Page

from services.scheduler.files.samples import SampleFile
from services.scheduler.state.tickets import EpisodeResult, Purpose
from tests.support.browser import chromium, opened, until
from tests.support.dashboard import Served
from tests.support.recorded import recorded, talk, ticket

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SECTIONS = ("learning", "lengths", "ledger", "fleet", "trajectories", "details")
HERE = Path(__file__).resolve().parent
# Texts that are hard to read, and what a screen reader or the keyboard would miss.
LOW_CONTRAST, UNNAMED = ((HERE / name).read_text(encoding="utf-8") for name in ("contrast.js", "names.js"))
EVIL = "<script>window.owned = 1</script><img src=x onerror='window.owned = 1'>\x1b[2J\x1b]0;owned\x07"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    recorded(tmp_path, steps=24, text=EVIL)
    async with Served(tmp_path) as one:
        yield one


async def filled(page: Page) -> None:
    """Everything is there: the last of its parts is drawn."""
    await page.wait_for_selector("#curves .card:not(.without) canvas")
    await page.wait_for_selector("#explorer canvas")
    await page.wait_for_selector("#map canvas")
    await page.wait_for_selector(".detail .turn")
    await until(page, "document.getElementById('state').dataset.state !== 'connecting'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", ["laptop", "phone"])
async def test_it_reads_well_on_every_screen(browser: Browser, served: Served, width: str, scheme: str):
    async with opened(browser, served.links[-1], width=width, scheme=scheme, touch=width == "phone") as page:
        await page.evaluate(
            "new PerformanceObserver((list) => { window.shift = (window.shift ?? 0) + list.getEntries()"
            ".filter((one) => !one.hadRecentInput).reduce((sum, one) => sum + one.value, 0); })"
            ".observe({type: 'layout-shift', buffered: true})"
        )
        await filled(page)
        for section in SECTIONS:
            assert await page.locator(f"#{section} h2").is_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= await page.evaluate(
            "innerWidth"
        )
        contrast = await page.evaluate(LOW_CONTRAST)
        assert contrast["texts"] > 150 and contrast["low"] == []
        heard = await page.evaluate(UNNAMED)
        assert heard["unnamed"] == [] and heard["pictures"] == 0 and heard["twice"] == []
        assert heard["language"] == "en" and heard["unlabelled"] == 0
        levels = heard["headings"]
        assert levels[0] == 1 and all(b - a <= 1 for a, b in pairwise(levels))
        assert await page.evaluate("window.shift ?? 0") < 0.1


async def test_text_of_environments_stays_text(browser: Browser, served: Served):
    async with opened(browser, served.links[-1], expected="TrustedHTML") as page:
        await filled(page)
        said = await page.locator(".turn.user .said").first.text_content()
        assert (
            said is not None
            and said.startswith("<script>window.owned")
            and "␛[2J" in said
            and "\x1b" not in said
        )
        assert await page.evaluate("window.owned") is None
        assert await page.locator(".turn img").count() == 0
        refused = await page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.name } }"
        )
        assert refused == "TypeError"


async def test_charts_are_read_by_pointer_and_keyboard(browser: Browser, served: Served):
    async with opened(browser, served.links[-1]) as page:
        await filled(page)
        chart = page.locator("#curves .plot").first
        assert "evaluation" in (await chart.get_attribute("aria-label") or "")
        await chart.focus()
        await page.keyboard.press("Home")
        first = await page.locator("#tip").text_content()
        await page.keyboard.press("ArrowRight")
        assert await page.locator("#tip").text_content() != first and first and "training step" in first
        await page.keyboard.press("Escape")
        assert await page.locator("#tip").is_hidden()
        await page.locator("#map .u-over").hover()
        assert "trajectories of" in (await page.locator("#tip").text_content() or "")


async def test_a_trajectory_is_found_and_read_token_by_token(browser: Browser, served: Served):
    async with opened(browser, served.links[-1]) as page:
        await filled(page)
        rows = page.locator(".list button")
        every = await rows.count()
        await page.get_by_role("combobox", name="shown").select_option("training")
        await until(page, f"document.querySelectorAll('.list button').length < {every}")
        assert await rows.count() == 24
        await page.get_by_label("first step").fill("20")
        await page.get_by_label("first step").press("Enter")
        await until(page, "document.querySelectorAll('.list button').length === 5")
        await rows.nth(1).click()
        await until(page, "document.querySelector('.detail .note').textContent.includes('step 23')")
        await page.keyboard.press("ArrowDown")
        await until(page, "document.querySelector('.detail .note').textContent.includes('step 22')")
        token = page.locator(".token").nth(2)
        await token.hover()
        said = await page.locator("#tip").text_content() or ""
        assert "“+”" in said and "log-prob −1.8" in said.replace("-1.8", "−1.8") and "version 4" in said
        await page.get_by_role("button", name="version", exact=True).click()
        tints = await page.locator(".token").evaluate_all("all => all.map((one) => one.className)")
        assert len(set(tints)) == 2
        await page.get_by_role("combobox", name="ending").select_option("ok")
        await page.get_by_role("combobox", name="reward").select_option("negative")
        await until(page, "document.querySelectorAll('.list button').length === 0")
        assert "None of this kind" in (await page.locator(".list").text_content() or "")


# Places of the siblings' buttons; nothing while one of them is not drawn.
BOXES = """() => {
  const boxes = [...document.querySelectorAll(".siblings button")].map((one) => one.getBoundingClientRect());
  return boxes.every(({ width }) => width > 0) && boxes.map(({ x, y }) => [x, y].map(Math.round));
}"""


@pytest.mark.parametrize("width", ["laptop", "phone"])
async def test_a_group_is_compared_side_by_side(browser: Browser, tmp_path: Path, width: str):
    recorded(tmp_path, steps=3)
    samples = SampleFile(tmp_path / "samples.jsonl")
    numbers = range(101, 109)
    for number in numbers:
        reward = (number - 104) / 4
        one = msgspec.structs.replace(ticket(number, Purpose.TRAIN, 4, 5, reward), group=100)
        samples.observe(3, one, one.result or EpisodeResult(), talk(f"say {number}", reward))
    samples.trained(4, numbers)
    samples.close()
    async with Served(tmp_path) as served, opened(browser, served.links[-1], width=width) as page:
        await filled(page)
        await page.locator(".list button[data-ticket='103']").click()
        siblings = page.locator(".siblings button")
        await until(page, "document.querySelectorAll('.siblings button').length === 8")
        rewards = await siblings.locator("b").all_text_contents()
        assert rewards == ["−0.75", "−0.5", "−0.25", "0", "+0.25", "+0.5", "+0.75", "+1"]
        # At one moment, in which all are drawn: the page moves when more of it arrives.
        boxes = await until(page, BOXES)
        columns, rows = map(set, zip(*boxes, strict=True))
        assert len(boxes) == 8 and (
            (len(rows), len(columns)) == (1, 8) if width == "laptop" else len(columns) >= 2
        )
        assert all(await siblings.evaluate_all("all => all.map((one) => one.scrollWidth <= one.clientWidth)"))
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await siblings.nth(6).click()
        await until(page, "document.querySelector('.detail .note').textContent.includes('ticket 107')")
        current = await siblings.evaluate_all("all => all.map((one) => one.getAttribute('aria-current'))")
        assert current.index("true") == 6 and current.count("true") == 1


async def test_the_reader_chooses_the_scheme(browser: Browser, served: Served):
    async with opened(browser, served.links[-1], scheme="dark") as page:
        await filled(page)
        paper = "getComputedStyle(document.body).backgroundColor"
        dark = await page.evaluate(paper)
        await page.locator("#scheme").click()
        assert await page.evaluate(paper) != dark
        await page.reload()
        await filled(page)
        assert await page.evaluate(paper) != dark
        assert "light" in (await page.locator("#scheme").get_attribute("aria-label") or "")


async def test_a_link_that_was_used_says_how_to_get_another(browser: Browser, served: Served):
    link = served.links[-1]
    async with opened(browser, link) as page:
        await filled(page)
        assert "token" not in page.url and len(served.links) == 2
        await page.reload()
        await filled(page)
    context = await browser.new_context()
    page = await context.new_page()
    answer = await page.goto(link)
    assert answer is not None and answer.status == 401
    assert "earl dashboard" in (await page.text_content("body") or "")
    await context.close()
