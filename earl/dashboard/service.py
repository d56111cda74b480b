"""The page of a run as a service of the local stack. The run's directory has its link while it is served."""

from __future__ import annotations

import asyncio
from pathlib import Path

from earl.config.run import RunConfig
from earl.dashboard import serve as page
from earl.rpc.main import announce


async def serve(config: RunConfig, directory: Path, name: str, stop: asyncio.Event) -> None:
    """Serves until `stop`. name: of this process, for its ready line. Raises as earl.dashboard.serve does."""
    try:
        await page.serve(
            directory,
            config,
            bind=config.dashboard.bind or "127.0.0.1:0",
            stop=stop,
            on_link=page.keep_link(directory),
            on_ready=lambda address: announce(name, address),
        )
    finally:
        page.forget_link(directory)
