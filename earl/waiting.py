"""Waiting for the first of several things that may happen, and for one thing no longer than a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from earl.errors import EarlError


@asynccontextmanager
async def deadline(within_s: float, error: EarlError) -> AsyncIterator[None]:
    """Raises `error` if the block takes longer than this many seconds; the block's own errors are raised as
    they are, a TimeoutError too."""
    timer = asyncio.timeout(within_s)
    try:
        async with timer:
            yield
    except TimeoutError:
        if not timer.expired():
            raise
        raise error from None


async def until_first(*works: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> list[bool]:
    """Runs these together until one has ended, or timeout_s has passed; for each whether it has ended.

    The others are cancelled, and have ended when this returns. Raises the error of the first that failed.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
        return [task in done for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
