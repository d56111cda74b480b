"""The dashboard of several runs in a real browser: any metric, zoomed; the list; a comparison."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from earl.stack.record import LaunchRecord, write_record
from earl.stack.run_files import LOGS
from earl.stack.status import RunStatus
from tests.support.browser import chromium, opened, until
from tests.support.dashboard import Served
from tests.support.recorded import recorded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """Fixture directories of three runs: first and second with steps, empty without."""
    for seed, (name, steps) in enumerate((("empty", 0), ("second", 20), ("first", 24))):
        (tmp_path / name).mkdir()
        if steps:
            text = "What is 12 + 30 in step-STEP?"
            recorded(tmp_path / name, steps=steps, text=text, seed=seed, overrides=[("seed", str(seed))])
        else:
            recorded(tmp_path / name, steps=1, seed=seed)
            for file in (tmp_path / name).glob("*.jsonl"):
                file.unlink()
    (tmp_path / "first" / LOGS).mkdir()
    line = {"time": "2026-01-01T00:00:00.000Z", "level": "error", "message": "the gateway is gone"}
    (tmp_path / "first" / LOGS / "rollout-0.log").write_text(json.dumps(line) + "\n")
    async with Served(tmp_path / "first") as one:
        yield one


async def drawn(page: Page, selector: str) -> None:
    await page.wait_for_selector(f"{selector} canvas")


async def test_any_number_is_chosen_smoothed_and_shown_over_time(browser: Browser, served: Served):
    async with opened(browser, served.links[-1]) as page:
        await drawn(page, "#explorer")
        add = page.get_by_label("add a metric")
        await add.fill("load.trainer.memory_fraction")
        await add.press("Enter")
        legend = "document.querySelector('#explorer .legend').textContent"
        await until(page, f"{legend}.includes('memory_fraction')")
        await page.locator("#explorer").get_by_label("mean of", exact=True).select_option("1")
        await until(page, f"!{legend}.includes('mean of')")
        await page.locator("#explorer").get_by_label("over", exact=True).select_option("time_s")
        plot = page.locator("#explorer .plot")
        await plot.focus()
        await page.keyboard.press("End")
        await until(page, "document.getElementById('tip').textContent.startsWith('second 240')")
        await page.locator("#explorer .chips button").first.click()
        await until(page, "document.querySelectorAll('#explorer .chips button').length === 1")


async def test_a_drag_zooms_and_a_double_click_shows_all_again(browser: Browser, served: Served):
    async with opened(browser, served.links[-1]) as page:
        await drawn(page, "#explorer")
        over = page.locator("#explorer .u-over")
        await over.scroll_into_view_if_needed()
        box = await over.bounding_box()
        assert box is not None
        shown = "document.querySelector('#explorer .plot').dataset.range"
        whole = await page.evaluate(shown)
        await page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
        await page.mouse.down()
        await page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=6)
        await page.mouse.up()
        await until(page, f"{shown} !== {json.dumps(whole)}")
        low, high = (float(end) for end in (await page.evaluate(shown)).split(" "))
        assert 4 < low < 10 and 10 < high < 15
        await page.mouse.dblclick(box["x"] + 20, box["y"] + 40)
        await until(page, f"{shown} === {json.dumps(whole)}")


async def test_figures_of_training_and_machine_are_there_and_nothing_is_empty(
    browser: Browser, served: Served
):
    async with opened(browser, served.links[-1]) as page:
        for section in ("#training", "#machine", "#busy"):
            await drawn(page, section)
        titles = set(await page.locator("#training .card:visible h3").all_text_contents())
        assert {"Loss", "Gradient norm", "Mismatch of trainer and engine", "KL to the reference"} <= titles
        assert await page.locator(".empty:visible").count() == 0
        assert await page.locator(".card:visible").filter(has_not=page.locator("*:visible")).count() == 0
        assert "the gateway is gone" in (await page.locator("#alerts").text_content() or "")
    address = served.links[-1]
    async with opened(browser, address, width="phone") as page:
        await page.goto(f"http://{served.address}/?run=empty")
        await until(page, "document.getElementById('name').textContent === 'tictactoe'")
        await until(page, "!document.body.classList.contains('waiting')")
        assert await page.locator(".card:visible").count() <= 4
        assert "still to come" in (await page.locator("#learning").text_content() or "")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_rewards_alone_are_scores_on_the_page_and_in_the_list(browser: Browser, tmp_path: Path):
    """Nothing says win rate where nothing is won or lost."""
    directory = tmp_path / "first"
    directory.mkdir()
    recorded(directory, winners=False)
    status = RunStatus(run="first", phase="train", step=12, steps=12, metrics={"reward_mean": 0.25})
    write_record(directory, LaunchRecord(1, "m", outcome="complete", status=status))
    async with Served(directory) as served, opened(browser, served.links[-1]) as page:
        await drawn(page, "#curves")
        await until(page, "document.getElementById('tiles').textContent.includes('evaluated score')")
        shown = await page.locator("main").inner_text()
        assert "training score" in shown and "win rate" not in shown.lower()
        titles = await page.locator("#curves .card:visible h3").all_text_contents()
        assert "Score" in titles and "Reward" not in titles
        await page.get_by_role("link", name="All runs").click()
        await until(page, "document.querySelectorAll('#runs tbody tr').length === 1")
        columns = await page.locator("#runs thead th").all_text_contents()
        assert "score" in columns and not {"win rate", "reward"} & set(columns)


@pytest.mark.parametrize("width", ["phone", "small"])
async def test_the_list_and_a_comparison_fit_a_phone(browser: Browser, served: Served, width: str):
    """Wide tables scroll within their frames; the page does not."""
    fits = "document.documentElement.scrollWidth <= innerWidth"
    async with opened(browser, served.links[-1], width=width, touch=True) as page:
        await page.goto(f"http://{served.address}/runs")
        await until(page, "document.querySelectorAll('#runs tbody tr').length === 3")
        assert await page.evaluate(fits)
        await page.goto(f"http://{served.address}/compare?run=first&run=second&run=empty")
        await drawn(page, "#curves")
        await until(page, "document.querySelectorAll('#differences tbody tr').length > 0")
        assert await page.evaluate(fits)


async def test_runs_are_listed_and_compared(browser: Browser, served: Served):
    async with opened(browser, served.links[-1]) as page:
        await page.get_by_role("link", name="All runs").click()
        await until(page, "document.querySelectorAll('#runs tbody tr').length === 3")
        for name in ("first", "second"):
            row = page.locator("#runs tbody tr").filter(has=page.locator(f'a[href="/?run={name}"]'))
            await row.get_by_role("checkbox").check()
        await page.get_by_role("link", name="Compare 2 runs").click()
        await drawn(page, "#curves")
        legend = await page.locator("#curves .legend").first.text_content()
        assert legend is not None and "first" in legend and "second" in legend
        differ = await page.locator("#differences tbody tr").all_text_contents()
        assert differ == ["seed21"]
        await page.get_by_label("add a metric").fill("grad_norm")
        await page.get_by_label("add a metric").press("Enter")
        await until(page, "document.querySelector('#curves').textContent.includes('grad_norm')")
        shown = page.url
        await page.goto(shown)
        await drawn(page, "#curves")
        assert "metric=grad_norm" in shown and await page.locator("#curves .card").count() == 5
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_a_trajectory_has_a_link_and_its_text_is_searched(browser: Browser, served: Served):
    async with opened(browser, served.links[-1]) as page:
        await page.wait_for_selector(".detail .turn")
        await page.get_by_label("text", exact=True).first.fill("no such words")
        await page.get_by_label("text", exact=True).first.press("Enter")
        await until(page, "document.querySelectorAll('.list button').length === 0")
        await page.get_by_label("text", exact=True).first.fill("30 in Step-17")
        await page.get_by_label("text", exact=True).first.press("Enter")
        await until(page, "document.querySelectorAll('.list button').length === 1")
        await page.locator(".list button").click()
        await until(page, "document.querySelector('.detail')?.textContent.includes('12 + 30 in step-17')")
        await page.goto(f"http://{served.address}/?run=first#trajectory-7")
        await until(page, "document.querySelector('.detail .note')?.textContent.includes('ticket 7 ')")
        async with page.expect_response(lambda answer: "/logs" in answer.url):
            await page.locator("#panels summary").first.click()
        await until(page, "document.querySelector('.log').textContent.includes('the gateway is gone')")
        await page.locator("#panels summary").nth(1).click()
        await until(page, "document.querySelector('#panels table')?.textContent.includes('trainer.lr')")
