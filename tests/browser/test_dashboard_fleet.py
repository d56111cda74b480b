"""The page in a real browser beside a gateway whose hosts fail: their states, who waits, which faults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from earl.cli.lib.concerns import WAIT_S
from earl.obs.metrics import LineFile
from earl.v1 import common_pb2
from tests.support.browser import chromium, opened, until
from tests.support.dashboard import Served, config_of
from tests.support.gateway_world import World
from tests.support.live_services import Scheduler, listening
from tests.support.recorded import recorded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

EVIL = "<img src=x onerror='window.owned = 1'>\x1b[2J" + "boom" * 2000

# Environment, faults and last fault of each row.
ROWS = """[...document.querySelectorAll('#faults tbody tr')].map((row) =>
  [...row.cells].slice(0, 3).map((cell) => cell.textContent).join(""))"""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


@pytest.fixture
def world() -> World:
    return World(quarantine_faults=1, quarantine_s=600, lease_s=600, reconnect_s=600)


@pytest.fixture
async def link(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A link to the page of a run with this gateway."""
    recorded(tmp_path, steps=6)
    async with listening(Scheduler(config_of(tmp_path).name), world) as address:
        monkeypatch.setenv("EARL_SCHEDULER", address)
        monkeypatch.setenv("EARL_GATEWAY", address)
        async with Served(tmp_path) as served:
            yield served.links[-1]


async def shows(page: Page, part: str, *texts: str) -> None:
    """Waits until this part of the page has all of the texts."""
    await until(
        page,
        "([part, texts]) => texts.every((text) => document.querySelector(part).textContent.includes(text))",
        [part, texts],
    )


@pytest.mark.parametrize("width", ["laptop", "small"])
async def test_hosts_faults_and_waiting_episodes_are_shown(
    browser: Browser, world: World, link: str, width: str
):
    bad, lost = world.host("bad"), world.host("lost", environments=("third",))
    world.host("good", environments=("other",))
    async with opened(browser, link, width=width) as page:
        await shows(page, "#hosts", "bad", "good", "attached")
        assert await page.locator("#faults").is_hidden() and await page.locator("#alerts").is_hidden()
        session = world.started(bad, 1)
        world.step(1, 1)
        world.answer(bad, session, 1, done=True, ending=common_pb2.ENDING_ENV_ERROR, message=EVIL)
        world.open(2)
        world.open(3, environment="third")
        world.gateway.detach(lost, 1)
        await shows(page, "#hosts", "quarantined until", "for game: <img src=x", "reconnecting", "attached")
        world.pass_time(WAIT_S + 0.2)
        waits = "1 episode waits for a host of game: its host is in quarantine"
        await shows(page, "#hosts", waits)
        await shows(page, "#alerts", waits, "game: host bad is in quarantine for 597 s more: <img")
        await shows(page, "#faults", "Since the gateway began.", "game", "<img src=x", "␛[2J")
        assert await page.locator("#faults tbody tr").count() == 1
        assert await page.locator("main img").count() == 0 and await page.evaluate("window.owned") is None
        assert len(await page.locator("#faults").text_content() or "") < 1000
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        # The host's process is started again: it is tried with the episode that waits.
        world.gateway.pool.quarantine.started_again("bad", world.now)
        world.pass_time(0.2)
        await shows(page, "#hosts", "on probation for game: one session at a time")
        await page.locator("#alerts").wait_for(state="hidden")
        [reset] = bad.outbox.take("reset")
        world.answer(bad, reset.session, 0, done=True, ending=common_pb2.ENDING_OK)
        await until(page, "!document.getElementById('hosts').textContent.includes('on probation')")


async def test_episodes_that_wait_for_an_environment_without_a_host_are_told(
    browser: Browser, world: World, link: str
):
    for number in (1, 2, 3):
        world.open(number, environment="chess")
    world.pass_time(WAIT_S + 0.2)
    waits = "3 episodes wait for a host of chess: no host serves it"
    async with opened(browser, link) as page:
        await shows(page, "#alerts", "now", waits)
        await shows(page, "#hosts", waits)
        world.host("late", capacity=3, environments=("chess",))
        await page.locator("#alerts").wait_for(state="hidden")
        await until(page, "!document.getElementById('hosts').textContent.includes('wait for a host')")


async def test_the_larger_of_recorded_and_listed_faults_is_shown(
    browser: Browser, world: World, link: str, tmp_path: Path
):
    file = LineFile(tmp_path / "faults.jsonl")
    for environment in ("game", "other"):
        file.append({"time_ns": 10**18, "environment": environment, "faults": 2, "last": "recorded"})
    file.append({"time_ns": 2 * 10**18, "environment": "game", "host": "bad", "reason": "recorded"})
    host = world.host("bad", environments=("game", "other", "third"))
    for environment, faults in (("game", 3), ("other", 1), ("third", 1)):
        for _ in range(faults):
            world.gateway.pool.faults.note((host.name, environment), "listed")
    async with opened(browser, link) as page:
        await shows(page, "#faults", "Of the whole run.", "third")
        assert await page.evaluate(ROWS) == ["game3listed", "other2recorded", "third1listed"]
        file.append({"time_ns": 3 * 10**18, "full": True})
        await shows(page, "#faults", "Recorded until 18 May 2033", "those of the gateway since it began")
    file.close()
