"""A warden beside a process that starts others: it ends them should that process die, even by kill -9."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from earl.stack import warden


class LaunchGuard:
    """Keeps a warden that ends the run should this process die, and removes the run's temporary files."""

    def __init__(self, mark: str, leaves: Sequence[Path]) -> None:
        self._arguments = (sys.executable, "-m", "earl.stack.warden", mark, *map(str, leaves))
        self._leaves = leaves
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        for path in self._leaves:
            shutil.rmtree(path, ignore_errors=True)
        await self._process.communicate(warden.DONE)
