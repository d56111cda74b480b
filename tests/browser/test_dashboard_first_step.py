"""The page in a real browser from before a run's first step on: no empty boxes, the time left, transfers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from earl.config.load import load_run
from earl.obs.metrics import LineFile
from tests.support.browser import chromium, opened, until
from tests.support.dashboard import Served, config_of
from tests.support.gateway_world import World
from tests.support.live_services import Scheduler, listening
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TICTACTOE = ROOT / "examples" / "tictactoe.toml"
SECTIONS = ("learning", "lengths", "ledger", "fleet", "system", "trajectories")
# The sections' cards and sentences that are seen, as [section, text].
SEEN = """selector => [...document.querySelectorAll(`main > section ${selector}`)]
  .filter((one) => one.checkVisibility()).map((one) => [one.closest("section").id, one.textContent])"""
# Keeps what is written on the canvases of a card from here on.
WATCH = """card => {
  const write = CanvasRenderingContext2D.prototype.fillText;
  window.written = [];
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    if (this.canvas.closest(card)) window.written.push(text);
    write.call(this, text, ...place);
  };
}"""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A run that has written nothing but its run file."""
    (tmp_path / "run.json").write_text(load_run(TICTACTOE, []).model_dump_json())
    return tmp_path


@pytest.fixture
def world() -> World:
    return World(quarantine_faults=1, quarantine_s=600, lease_s=600)


@pytest.fixture
def scheduler(directory: Path) -> Scheduler:
    return Scheduler(config_of(directory).name)


@pytest.fixture
async def link(
    directory: Path, world: World, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """A link to the page of the run with these services."""
    async with listening(scheduler, world) as address:
        monkeypatch.setenv("EARL_SCHEDULER", address)
        monkeypatch.setenv("EARL_GATEWAY", address)
        async with Served(directory) as served:
            yield served.links[-1]


def step(number: int, **transfers: int) -> dict[str, object]:
    """A line of the metrics as far as the page reads it. transfers: bytes by path, since the run began."""
    moved = {
        path: {"size_bytes": size, "seconds": 0.5, "transfers": number, "retries": 0}
        for path, size in transfers.items()
    }
    return {
        "step": number, "phase": "train", "version": number, "time_s": 10.0 * number, "win_rate": 0.5,
        "reward_mean": 0.5, "tokens_per_s": 1000.0, "length_mean": 60.0, "transfers": moved,
        "length_histogram": {"first": 20, "counts": [3, 9, 2], "per_octave": 4},
    }  # fmt: skip


async def live(page: Page) -> None:
    await until(page, "document.getElementById('state').dataset.state === 'live'")
    await until(page, "!document.body.classList.contains('waiting')")


@pytest.mark.parametrize("width", ["laptop", "small"])
async def test_before_the_first_step_each_section_is_a_sentence_and_no_empty_box(
    browser: Browser, directory: Path, world: World, link: str, width: str
):
    async with opened(browser, link, width=width) as page:
        await live(page)
        assert await page.evaluate(SEEN, ".empty") == []
        cards = await page.evaluate(SEEN, ".card")
        assert [section for section, _ in cards if section in SECTIONS] == []
        sentences = await page.evaluate(SEEN, ".waits")
        assert [section for section, _ in sentences] == list(SECTIONS)
        # A box comes with its content, and the sentence goes.
        world.host("good")
        await until(page, "document.getElementById('hosts').checkVisibility()")
        LineFile(directory / "metrics.jsonl").write(step(1))
        await page.wait_for_selector("#curves .card:not(.without) canvas")
        await page.wait_for_selector("#map canvas")
        assert await page.evaluate(SEEN, ".empty") == []
        waiting = {section for section, _ in await page.evaluate(SEEN, ".waits")}
        assert waiting.isdisjoint({"learning", "lengths", "fleet"})


async def test_the_time_that_a_phase_still_takes_is_shown_with_its_steps(
    browser: Browser, scheduler: Scheduler, link: str
):
    time = "[...document.querySelectorAll('.tile')].at(-1).textContent"
    scheduler.status.elapsed_s = 12
    async with opened(browser, link) as page:
        await live(page)
        assert await page.evaluate(time) == "time12 straining 0 / 10"
        scheduler.status.step, scheduler.status.metrics["phase_left_s"] = 1, 90.0
        await until(page, f"{time}.endsWith('training 1 / 10, about 1 min 30 s left')")
        scheduler.status.step, scheduler.status.metrics["phase_left_s"] = 9, 8.0
        await until(page, f"{time}.endsWith('training 9 / 10, about 8.0 s left')")
        scheduler.status.metrics.clear()
        await until(page, f"{time}.endsWith('training 9 / 10')")


async def test_transfers_are_drawn_over_the_steps_on_an_axis_with_units(
    browser: Browser, directory: Path, link: str
):
    metrics = LineFile(directory / "metrics.jsonl")
    metrics.write(step(1, shm=1 << 20, ucx=0))
    async with opened(browser, link) as page:
        await page.wait_for_selector("#transfers tbody tr")
        assert await page.locator("#transfers .plot").is_hidden()
        await page.evaluate(WATCH, "#transfers")
        metrics.write(step(2, shm=3 << 20, ucx=1 << 19))
        metrics.write(step(3, shm=7 << 20, ucx=3 << 19))
        await page.wait_for_selector("#transfers canvas")
        plot = page.locator("#transfers .plot")
        assert "shm 4 MiB, ucx 1 MiB at training step 3" in (await plot.get_attribute("aria-label") or "")
        assert "shm" in (await page.locator("#transfers .legend").text_content() or "")
        await until(page, "written.includes('training step')")
        written = set(await page.evaluate("written"))
        assert {"0 B", "1 MiB", "2 MiB", "3 MiB", "4 MiB"} <= written or {"0 B", "2 MiB", "4 MiB"} <= written
        assert {"2", "3"} <= written
        await plot.focus()
        await page.keyboard.press("Home")
        assert await page.locator("#tip").text_content() == "training step 2shm: 2 MiBucx: 512 KiB"
        # The next step does not take the chart from under the reader.
        metrics.write(step(4, shm=8 << 20, ucx=3 << 19))
        await until(page, "document.querySelector('#transfers .plot').ariaLabel.includes('training step 4')")
        assert await page.evaluate("document.activeElement.matches('#transfers .plot')")
