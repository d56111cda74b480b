"""Makes a picture of a run's dashboard: `python tools/dashboard_picture.py RUN_DIR OUT.png [--dark]`.

Shows a real run as a browser draws it. tools/pictures.py makes the picture in docs/dashboard.md with it.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from pathlib import Path

from playwright.async_api import async_playwright

from earl.config.run import RunConfig
from earl.dashboard.serve import serve

WIDTH, HEIGHT = 1280, 800
# What learning, the lengths and the switches do not need.
LEFT_OUT = ["training", "explorer", "decisions", "ledger", "fleet", "system", "trajectories", "details"]
# The page is filled by then, or will not be.
FILL_MS = 15_000


async def picture(directory: Path, out: Path, scheme: str) -> None:
    config = RunConfig.model_validate_json((directory / "run.json").read_bytes())
    links: list[str] = []
    stop, ready = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(
        serve(
            directory,
            config,
            bind="127.0.0.1:0",
            stop=stop,
            on_link=links.append,
            on_ready=lambda address: ready.set(),
        )
    )
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
    try:
        async with async_playwright() as playwright:
            path = shutil.which("chromium")
            browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            page = await browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT},
                color_scheme="dark" if scheme == "dark" else "light",
                reduced_motion="reduce",
            )
            await page.goto(links[-1])
            await page.wait_for_selector("body:not(.waiting) .detail .turn", timeout=FILL_MS)
            await page.evaluate(
                "names => names.forEach((name) => document.getElementById(name).remove())", LEFT_OUT
            )
            await page.screenshot(path=str(out), full_page=True)
            await browser.close()
    finally:
        waiting.cancel()
        stop.set()
        await serving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(picture(arguments.run_dir, arguments.out, "dark" if arguments.dark else "light"))
    print(f"{arguments.out}: {arguments.out.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
