"""Waiting for the first of several things that may happen."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def until_first(*works: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> list[bool]:
    """Runs these together until one has ended, or timeout_s has passed; for each whether it has ended.

    The others are cancelled, and have ended when this returns. Raises the error of one that failed.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return [task in done for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
