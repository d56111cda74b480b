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


async def until_first(
    *works: Coroutine[Any, Any, Any] | asyncio.Future[Any], timeout_s: float | None = None
) -> list[bool]:
    """Waits until one of these has ended, or timeout_s has passed; for each whether it has ended.

    Coroutines run until then: the others are cancelled, and have ended when this returns; the error of the
    first that failed is raised. Tasks and futures continue, and their errors are left to their owners.
    """
    waits = [asyncio.ensure_future(work) for work in works]
    begun = [wait for wait, work in zip(waits, works, strict=True) if wait is not work]
    try:
        done, _ = await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in begun:
            if task in done:
                task.result()
        return [wait in done for wait in waits]
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
