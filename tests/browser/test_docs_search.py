"""The documentation's site: its search finds pages from the disk and from a server, and asks nobody else."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.browser import chromium
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
        timeout=240,
    )
    return directory


@contextmanager
def address_of(site: Path, scheme: str) -> Iterator[str]:
    """Yields the address of the site: on the disk, or at a server of this test."""
    if scheme == "file":
        yield site.as_uri()
        return
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("scheme", ["file", "http"])
async def test_a_word_is_found(site: Path, scheme: str):
    with address_of(site, scheme) as address:
        async with chromium() as browser:
            page = await (await browser.new_context()).new_page()
            elsewhere: list[str] = []
            page.on(
                "request",
                lambda asked: None if asked.url.startswith(address) else elsewhere.append(asked.url),
            )
            for start in ("index.html", "api/grpc.html"):
                await page.goto(f"{address}/{start}")
                await page.keyboard.press("/")
                # Typed key by key: the search listens to keys.
                await page.locator("[data-md-component=search-query]").press_sequentially("heartbeat")
                found = page.locator(".md-search-result__item a")
                await found.first.wait_for()
                links = await found.evaluate_all("links => links.map(link => link.href)")
                assert any(link.startswith(f"{address}/api/grpc.html#heartbeat") for link in links)
            assert not elsewhere
