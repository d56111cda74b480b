"""A real headless Chromium, and the dashboard in front of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, async_playwright

from tests.support import needs

WIDTHS = {"laptop": (1280, 800), "phone": (390, 844), "small": (360, 740)}


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """The system's, so that nothing is downloaded."""
    path = needs.program("chromium", "chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def opened(
    browser: Browser,
    link: str,
    *,
    width: str = "laptop",
    scheme: str = "light",
    touch: bool = False,
    expected: str = "",
) -> AsyncIterator[Page]:
    """The page behind a link or in a file; what it says on the console, and requests to others, are failures.

    expected: something that it says on purpose.
    """
    wide, tall = WIDTHS[width]
    context = await browser.new_context(
        viewport={"width": wide, "height": tall},
        color_scheme="dark" if scheme == "dark" else "light",
        has_touch=touch,
        reduced_motion="reduce",
    )
    page = await context.new_page()
    said: list[str] = []
    refused: list[str] = []
    origin = link if link.startswith("file:") else f"http://{urlsplit(link).netloc}"
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda one: None if one.url.startswith(origin) else said.append(f"asks {one.url}"))
    page.on("response", lambda one: refused.append(f"{one.status} {one.url}") if one.status >= 400 else None)
    page.set_default_timeout(15_000)
    await page.goto(link)
    try:
        yield page
        passed = (*EXPECTED, expected) if expected else EXPECTED
        unexpected = [line for line in said if not any(text in line for text in passed)]
        assert not unexpected, (unexpected, refused)
    finally:
        await context.close()


async def until(page: Page, expression: str, argument: object = None, *, within_s: float = 15.0) -> Any:
    """Waits until the expression (of `argument`, if it is a function) holds in the page, whose policy does
    not let the browser's own polling run. Returns its value."""
    async with asyncio.timeout(within_s):
        while True:
            if value := await page.evaluate(expression, argument):
                return value
            await asyncio.sleep(0.05)


# The browser's own word for a stream whose server is gone.
EXPECTED = ("Failed to load resource: net::ERR_",)
