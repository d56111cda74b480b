"""The dashboard in a real browser while the run goes on: what changes is shown, what is lost is said."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from earl.obs.metrics import LineFile
from earl.stack.run_files import DASHBOARD_LINK
from tests.support.browser import chromium, opened, until
from tests.support.dashboard import Served
from tests.support.recorded import recorded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TICTACTOE = Path(__file__).resolve().parents[2] / "examples" / "tictactoe.toml"
# By then a run of sixty short steps is over, on a busy machine too.
END_S = 120


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


def step(number: int, reward: float) -> dict[str, object]:
    """A line of the metrics as the scheduler writes it, as far as the page reads it."""
    return {
        "step": number, "phase": "train", "version": number + 3, "time_s": 10.0 * number, "win_rate": reward,
        "reward_mean": reward, "tokens_per_s": 1000.0, "length_mean": 60.0,
        "length_histogram": {"first": 20, "counts": [3, 9, 2], "per_octave": 4},
    }  # fmt: skip


async def tile(page: Page, name: str, value: str) -> None:
    """Waits until the tile of this name shows this value."""
    await until(
        page,
        "([name, value]) => [...document.querySelectorAll('.tile')].some((one) => "
        "one.querySelector('span').textContent === name && one.querySelector('b').textContent === value)",
        [name, value],
    )


async def test_what_a_run_writes_is_shown_as_it_comes(browser: Browser, tmp_path: Path):
    recorded(tmp_path, steps=6)
    async with Served(tmp_path) as served, opened(browser, served.links[-1]) as page:
        await tile(page, "reward", "1")
        columns = "document.querySelector('#map .plot').getAttribute('aria-label')"
        assert "Step 6" in await page.evaluate(columns)
        metrics = LineFile(tmp_path / "metrics.jsonl")
        metrics.write(step(7, 0.25))
        await tile(page, "reward", "0.25")
        await until(page, f"{columns}.includes('Step 7')")
        # A tab that was away is told what changed meanwhile.
        await page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        metrics.write(step(8, 0.75))
        await page.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
        async with page.expect_request(lambda one: one.url.partition("?")[0].endswith("/stream")) as again:
            await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        assert "?last=" in (await again.value).url
        await tile(page, "reward", "0.75")


async def test_a_page_outlives_its_server(browser: Browser, tmp_path: Path):
    recorded(tmp_path, steps=3)
    async with Served(tmp_path) as served:
        address, link = served.address, served.links[-1]
        context = opened(browser, link)
        page = await context.__aenter__()
        await tile(page, "reward", "1")
    await until(page, "document.getElementById('state').textContent.includes('not connected')")
    assert await page.locator("#notice").is_visible()
    LineFile(tmp_path / "metrics.jsonl").write(step(4, 0.5))
    async with Served(tmp_path, address):
        await tile(page, "reward", "0.5")
        await page.locator("#notice").wait_for(state="hidden")
        # More tabs of one browser than it has connections for one host.
        for _ in range(8):
            tab = await page.context.new_page()
            await tab.goto(f"http://{address}/")
            await tile(tab, "reward", "0.5")
        LineFile(tmp_path / "metrics.jsonl").write(step(5, 0.75))
        for tab in page.context.pages:
            await tile(tab, "reward", "0.75")
        await context.__aexit__(None, None, None)


async def test_a_real_run_from_its_start_to_its_end(browser: Browser, tmp_path: Path):
    keys = {
        "--runs-dir": str(tmp_path), "--warmup.batches": "2", "--warmup.batch_episodes": "64",
        "--warmup.minibatches": "2", "--evaluation.episodes": "32", "--scheduler.steps": "60",
        "--scheduler.group_size": "4", "--scheduler.batch_groups": "8", "--name": "seen",
    }  # fmt: skip
    command = [sys.executable, "-m", "earl.cli.main", "train", str(TICTACTOE), "--plain"]
    run = await asyncio.create_subprocess_exec(
        *command, *(text for pair in keys.items() for text in pair),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env=dict(os.environ),
    )  # fmt: skip
    said = asyncio.create_task(run.communicate())
    directory = tmp_path / "seen"
    try:
        async with asyncio.timeout(90):
            while not (directory / DASHBOARD_LINK).is_file():
                assert run.returncode is None, (await said)[1].decode()
                await asyncio.sleep(0.1)
        link = (directory / DASHBOARD_LINK).read_text().strip()
        async with opened(browser, link) as page:
            page.set_default_timeout(END_S * 1000)
            await until(page, "document.getElementById('state').dataset.state === 'live'")
            await page.wait_for_selector("#workers tbody tr")
            await page.wait_for_selector("#hosts tbody tr")
            await page.wait_for_selector("#counts .stack")
            await page.wait_for_selector("#tickets tbody tr")
            await page.wait_for_selector("#curves .card:not(.without) canvas")
            await page.wait_for_selector(".token")
            assert "rollout-0" in (await page.locator("#workers").text_content() or "")
            assert "env-0" in (await page.locator("#hosts").text_content() or "")
            await until(page, "!document.getElementById('notice').hidden", within_s=END_S)
        assert (await asyncio.wait_for(said, 60), run.returncode)[1] == 0
    finally:
        if run.returncode is None:
            run.send_signal(signal.SIGTERM)
            await asyncio.wait_for(said, 60)
    assert not (directory / DASHBOARD_LINK).exists()
    assert json.loads((directory / "result.json").read_text())["trained"] > 0
    async with Served(directory) as served, opened(browser, served.links[-1], width="phone") as page:
        await until(page, "document.getElementById('state').dataset.state === 'ended'")
        await page.wait_for_selector("#map canvas")
        assert "final" in (await page.locator("#tiles").text_content() or "")
        await page.locator(".token").first.wait_for()
    async with opened(browser, (directory / "report.html").as_uri(), width="phone") as page:
        await until(page, "document.getElementById('state').dataset.state === 'ended'")
        await page.wait_for_selector("#map canvas")
        assert "final" in (await page.locator("#evaluations").text_content() or "")
        await page.locator(".token").first.wait_for()
