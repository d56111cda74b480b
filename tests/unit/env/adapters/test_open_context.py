"""Contexts that a task of their own keeps open."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from earl.env.adapters import open_context
from earl.env.adapters.open_context import Kept, shared
from earl.errors import EnvBackendLost


class Context:
    """Notes who enters and leaves it; may be told to fail, to wait, or to be lost."""

    def __init__(self, *, waits=False, fails=False):
        self.waits, self.fails = waits, fails
        self.tasks = []
        self.lost = asyncio.Event()

    @asynccontextmanager
    async def make(self):
        self.tasks.append(asyncio.current_task())
        if self.fails:
            raise BaseExceptionGroup("two", [ValueError("broken"), ValueError("also")])
        if self.waits:
            await asyncio.Event().wait()
        body = asyncio.current_task()
        assert body is not None
        watching = asyncio.create_task(self._watch(body))
        try:
            yield "value"
        except asyncio.CancelledError:
            if self.lost.is_set():
                raise ConnectionError("it died") from None
            raise
        finally:
            watching.cancel()
            self.tasks.append(asyncio.current_task())

    async def _watch(self, body):
        await self.lost.wait()
        body.cancel()


async def test_one_task_enters_and_leaves():
    context = Context()
    open_ = Kept(context.make, "it")
    assert await open_.entered(5) == await open_.entered(5) == "value"
    assert await open_.during(asyncio.sleep(0, "done"), 5) == "done"
    assert not open_.ended
    await open_.close()
    assert open_.ended and len(context.tasks) == 2 and len(set(context.tasks)) == 1
    assert context.tasks[0] is not asyncio.current_task()


async def test_what_does_not_start_is_lost():
    with pytest.raises(EnvBackendLost, match="it did not start: ValueError: broken"):
        await Kept(Context(fails=True).make, "it").entered(5)
    slow = Kept(Context(waits=True).make, "it")
    with pytest.raises(EnvBackendLost, match=r"within 0\.01 s"):
        await slow.entered(0.01)
    await slow.close()
    assert slow.ended


async def test_what_ends_early_ends_those_who_use_it():
    context = Context()
    open_ = Kept(context.make, "it")
    await open_.entered(5)
    using = asyncio.create_task(open_.during(asyncio.Event().wait(), 5))
    await asyncio.sleep(0)
    context.lost.set()
    with pytest.raises(EnvBackendLost, match="it was lost: ConnectionError: it died"):
        await using
    with pytest.raises(TimeoutError):
        await Kept(Context().make, "it").during(asyncio.Event().wait(), 0.01)


async def test_one_for_all_who_share_a_key():
    first, second = Context(), Context()
    one = shared("key", first.make, "it")
    assert shared("key", second.make, "it") is one
    assert shared("other", second.make, "it") is not one
    await one.entered(5)
    first.lost.set()
    with pytest.raises(EnvBackendLost):
        await one.during(asyncio.Event().wait(), 5)
    again = shared("key", second.make, "it")
    assert again is not one and await again.entered(5) == "value"


def test_the_end_of_a_loop_leaves_what_is_shared():
    contexts = []

    async def use():
        contexts.append(Context())
        await shared("key", contexts[0].make, "it").entered(5)

    asyncio.run(use())
    assert len(contexts[0].tasks) == 2
    assert not [loop for loop, _ in open_context._shared if loop.is_closed()]
