"""An async context manager kept open by a task of its own, for as long as episodes need it.

Many a library wants its context left by the task that entered it; an episode's reset, steps and close are
each another task. The keeper task enters, holds and leaves. Opening and closing are bounded; what ends the
keeper early (a server that died) is kept as `lost`. Where nobody closes it, the end of its loop does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from earl.errors import EnvBackendLost

log = logging.getLogger(__name__)

CLOSE_S = 10.0

T = TypeVar("T")
Make = Callable[[], AbstractAsyncContextManager[T]]


class Kept(Generic[T]):
    """make: gives the context manager. what: names it in errors. ended: called once it is left.

    Made on a running loop.
    """

    def __init__(self, make: Make[T], what: str, ended: Callable[[Kept[T]], None] | None = None) -> None:
        self._what = what
        self._on_end = ended
        self._leave = asyncio.Event()
        self._entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep(make))
        self._task.add_done_callback(self._noted)

    async def _keep(self, make: Make[T]) -> None:
        async with make() as value:
            self._entered.set_result(value)
            await self._leave.wait()

    def _noted(self, task: asyncio.Task[None]) -> None:
        if self._on_end is not None:
            self._on_end(self)
        if not task.cancelled() and task.exception() is not None:
            log.info("%s ended: %s", self._what, self._reason())

    @property
    def ended(self) -> bool:
        """Returns whether it is closed, or was lost."""
        return self._task.done() or self._leave.is_set()

    @property
    def lost(self) -> EnvBackendLost:
        """The error of using it after it ended, with what ended it."""
        return EnvBackendLost(f"{self._what} was lost: {self._reason()}")

    async def entered(self, within_s: float) -> T:
        """Returns the context manager's value; gives up after so many seconds.

        Raises EnvBackendLost.
        """
        done, _ = await asyncio.wait(
            {self._task, self._entered}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED
        )
        if self._entered in done and not self._task.done():
            return self._entered.result()
        if self._task.done():
            raise EnvBackendLost(f"{self._what} did not start: {self._reason()}")
        self._task.cancel()
        raise EnvBackendLost(f"{self._what} did not start within {within_s:g} s")

    async def during(self, work: Any, within_s: float) -> Any:
        """The result of an awaitable that needs it open; cancelled where that is not waited for any more.

        Raises TimeoutError, and EnvBackendLost if the context ends first.
        """
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait({working, self._task}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            if self._task.done():
                raise self.lost
            raise TimeoutError
        finally:
            working.cancel()

    async def close(self) -> None:
        """Leaves the context manager; at most twice CLOSE_S."""
        self._leave.set()
        if not self._entered.done():
            self._task.cancel()
        for _ in range(2):
            if (await asyncio.wait({self._task}, timeout=CLOSE_S))[0]:
                return
            self._task.cancel()
        log.warning("%s could not be closed within %g s", self._what, 2 * CLOSE_S)

    def _reason(self) -> str:
        if not self._task.done():
            return "it was closed"
        if self._task.cancelled():
            return "it was cancelled"
        error = self._task.exception()
        return _leaf(error) if error is not None else "it was closed"


_shared: dict[tuple[asyncio.AbstractEventLoop, Hashable], Kept[Any]] = {}


def shared(key: Hashable, make: Make[T], what: str) -> Kept[T]:
    """The one of this key on the running loop; a new one if there is none or it ended."""
    where = (asyncio.get_running_loop(), key)
    if where not in _shared or _shared[where].ended:
        _shared[where] = Kept(make, what, lambda kept: _forget(where, kept))
    return _shared[where]


def _forget(where: tuple[asyncio.AbstractEventLoop, Hashable], kept: Kept[Any]) -> None:
    if _shared.get(where) is kept:
        del _shared[where]


def _leaf(error: BaseException) -> str:
    """The first error inside groups of errors, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
