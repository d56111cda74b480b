"""Waiting for the first of several things that may happen, for one thing no longer than a deadline, for
what may lose a cancellation, and for a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

from earl.errors import EarlError

T = TypeVar("T")


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


@contextmanager
def cancellable() -> Iterator[None]:
    """Raises CancelledError for a cancellation that arrived within the block and was lost in a library there,
    whether the block then returned or failed.

    gRPC's calls wait for a task of theirs that takes a cancellation for its own: where the call fails at that
    moment, the waiter sees its failure and no cancellation. redis-py sends within asyncio.wait_for, which on
    Python 3.11 returns what is done although it was cancelled (gh-86296).
    """
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        yield
    except Exception as error:
        if task is not None and task.cancelling() > cancels:
            raise asyncio.CancelledError from error
        raise
    if task is not None and task.cancelling() > cancels:
        raise asyncio.CancelledError


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


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Returns function(*args), run on a thread; cancelled, it waits for the thread, which may use memory that
    the caller frees."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(work)
    finally:
        if not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
