"""Async context managers that are entered before an episode needs them, so that a reset need not wait.

    take ─► one that waits ─► still good? ─ yes ─► the caller's alone, until it closes it
               │ none             │ no: closed, and the next is tried
               └─► one that is entered now ─► the caller's alone
    after either: others are entered in the background, until `count` wait

None is given out twice. At most `count` wait, entered or being entered, and each gets start_s to be entered.
After a failure none is started ahead until one was entered, so what cannot start is not tried again and
again. The end of the loop leaves those that wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

from earl.env.adapters.open_context import Kept, Make
from earl.errors import EnvBackendLost

log = logging.getLogger(__name__)

# How long one that waited may take to say that it is still good.
CHECK_S = 5.0

T = TypeVar("T")


class ReadyContexts(Generic[T]):
    """make, what: as Kept's. count: how many wait. start_s: longest time to enter one, in seconds.

    is_good: whether a value that waited can be used, in at most CHECK_S. Made and used on one running loop.
    """

    def __init__(
        self, make: Make[T], what: str, count: int, start_s: float, is_good: Callable[[T], Awaitable[bool]]
    ) -> None:
        self._make = make
        self._what = what
        self._count = count
        self._start_s = start_s
        self._is_good = is_good
        self._waiting: deque[Kept[T]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self) -> tuple[Kept[T], T]:
        """Returns one that is entered, which the caller closes, and its value.

        Raises EnvBackendLost if none could be entered within start_s.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._start_s
        left_s = self._start_s
        while self._waiting and left_s > 0:
            kept = self._waiting.popleft()
            usable = await self._checked(kept, left_s)
            if usable is not None:
                return usable
            left_s = ends - loop.time()
        if left_s <= 0:
            raise EnvBackendLost(f"{self._what} did not start within {self._start_s:g} s")
        return await self._entered_now(left_s)

    async def _checked(self, kept: Kept[T], within_s: float) -> tuple[Kept[T], T] | None:
        """One that waited, with its value; None, and it is closed, if it is not good any more."""
        try:
            value = await kept.entered(within_s)
            if await kept.during(self._is_good(value), CHECK_S):
                self._refill()
                return kept, value
            reason = "it does not answer"
        except (EnvBackendLost, TimeoutError) as error:
            reason = str(error) or "it does not answer"
        except BaseException:
            self._spawn(kept.close())
            raise
        log.warning("%s was started ahead and cannot be used: %s", self._what, reason)
        self._spawn(kept.close())
        return None

    async def _entered_now(self, within_s: float) -> tuple[Kept[T], T]:
        kept = Kept(self._make, self._what)
        try:
            value = await kept.entered(within_s)
        except BaseException:
            await kept.close()
            raise
        self._refill()
        return kept, value

    def _refill(self) -> None:
        while len(self._waiting) < self._count:
            kept = Kept(self._make, self._what)
            self._waiting.append(kept)
            self._spawn(self._started(kept))

    async def _started(self, kept: Kept[T]) -> None:
        """Gives one that is being entered up after start_s, unless an episode has taken it by then."""
        try:
            await kept.entered(self._start_s)
        except EnvBackendLost as error:
            if kept in self._waiting:
                log.warning("ahead of its episode: %s", error)
                self._waiting.remove(kept)
                await kept.close()

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_ready: dict[tuple[asyncio.AbstractEventLoop, Hashable], ReadyContexts[Any]] = {}


def ready_contexts(key: Hashable, create: Callable[[], ReadyContexts[T]]) -> ReadyContexts[T]:
    """The contexts of this key on the running loop, created if there are none yet."""
    for where in [where for where in _ready if where[0].is_closed()]:
        del _ready[where]
    where = (asyncio.get_running_loop(), key)
    if where not in _ready:
        _ready[where] = create()
    return _ready[where]
