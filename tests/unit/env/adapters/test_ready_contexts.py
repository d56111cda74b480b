"""Contexts that are entered ahead: none is given out twice, every wait is bounded, failures are typed."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from earl.env.adapters import ready_contexts
from earl.env.adapters.ready_contexts import ReadyContexts
from earl.errors import EnvBackendLost

LONG_S = 30.0


class Source:
    """Makes contexts whose values are 0, 1, 2 …; `events` has who was entered and left, in order.

    fails, hangs: those that raise, or never end, while they are entered. bad: those that are not good.
    """

    def __init__(self, *, fails=(), hangs=(), bad=()):
        self.fails, self.hangs, self.bad = fails, hangs, bad
        self.made = 0
        self.held = []
        self.events = asyncio.Queue()

    @asynccontextmanager
    async def make(self):
        number, self.made = self.made, self.made + 1
        try:
            if number in self.fails:
                raise ValueError(f"{number} is broken")
            if number in self.hangs:
                await asyncio.Event().wait()
            self.events.put_nowait(("entered", number))
            yield number
        finally:
            self.events.put_nowait(("left", number))

    async def is_good(self, number):
        return number not in self.bad

    def ready(self, count=2, start_s=LONG_S, is_good=None):
        return ReadyContexts(self.make, "it", count, start_s, is_good or self.is_good)

    async def take(self, ready):
        """The value of one that an episode takes and holds."""
        kept, value = await ready.take()
        self.held.append(kept)
        return value

    async def happened(self, count):
        """The next so many events."""
        async with asyncio.timeout(LONG_S):
            return [await self.events.get() for _ in range(count)]


async def test_others_wait_for_the_next_and_each_is_given_out_once():
    source = Source()
    ready = source.ready(count=2)
    assert await source.take(ready) == 0
    assert await source.happened(3) == [("entered", 0), ("entered", 1), ("entered", 2)]
    assert [await source.take(ready) for _ in range(4)] == [1, 2, 3, 4]
    assert await source.happened(4) == [("entered", number) for number in range(3, 7)]
    assert source.made == 7
    await source.held[0].close()
    assert await source.happened(1) == [("left", 0)]
    assert not any(kept.ended for kept in source.held[1:])


async def test_episodes_that_begin_at_once_get_one_each():
    source = Source()
    ready = source.ready(count=2)
    taken = await asyncio.gather(*(source.take(ready) for _ in range(8)))
    assert sorted(taken) == [*range(8)]
    await source.happened(10)
    assert source.made == 10


async def test_none_is_started_ahead_where_none_is_wanted():
    source = Source()
    ready = source.ready(count=0)
    assert [await source.take(ready), await source.take(ready)] == [0, 1]
    assert source.made == 2


async def test_one_that_is_not_good_any_more_is_closed_and_the_next_is_taken():
    source = Source(bad=(1,))
    ready = source.ready(count=2)
    await source.take(ready)
    await source.happened(3)
    assert await source.take(ready) == 2
    assert ("left", 1) in await source.happened(3)


async def test_one_that_does_not_say_whether_it_is_good_is_given_up(monkeypatch):
    monkeypatch.setattr(ready_contexts, "CHECK_S", 0.01)

    async def is_good(number):
        return await asyncio.Event().wait() if number == 1 else True

    source = Source()
    ready = source.ready(count=1, is_good=is_good)
    await source.take(ready)
    await source.happened(2)
    assert await source.take(ready) == 2


async def test_what_cannot_start_is_the_episodes_error_and_is_not_tried_ahead():
    source = Source(fails=range(9))
    ready = source.ready()
    for number in range(3):
        with pytest.raises(EnvBackendLost, match=f"it did not start: ValueError: {number} is broken"):
            await source.take(ready)
    assert source.made == 3


async def test_one_that_failed_ahead_costs_no_episode(caplog):
    source = Source(fails=(1, 2))
    ready = source.ready(count=2)
    await source.take(ready)
    await source.happened(3)
    assert await source.take(ready) == 3
    assert "1 is broken" in caplog.text


async def test_a_start_is_bounded_ahead_of_an_episode_and_for_one():
    source = Source(hangs=range(1, 9))
    ready = source.ready(count=2, start_s=0.01)
    assert await source.take(ready) == 0
    assert sorted(await source.happened(3)) == [("entered", 0), ("left", 1), ("left", 2)]
    with pytest.raises(EnvBackendLost, match=r"it did not start within 0\.01 s"):
        await source.take(ready)
    assert await source.happened(1) == [("left", 3)]


async def test_an_episode_that_is_cancelled_leaves_nothing_open():
    source = Source(hangs=(0,))
    ready = source.ready()
    taking = asyncio.create_task(source.take(ready))
    await asyncio.sleep(0)
    taking.cancel()
    assert await source.happened(1) == [("left", 0)]
    with pytest.raises(asyncio.CancelledError):
        await taking


def test_the_end_of_a_loop_leaves_those_that_wait_and_forgets_them():
    sources = []

    async def use():
        source = Source()
        sources.append(source)
        ready = ready_contexts.ready_contexts("key", source.ready)
        assert ready_contexts.ready_contexts("key", source.ready) is ready
        await source.take(ready)
        await source.happened(3)

    asyncio.run(use())
    left = {sources[0].events.get_nowait() for _ in range(3)}
    assert left == {("left", 0), ("left", 1), ("left", 2)}
    asyncio.run(use())
    assert len([key for _, key in ready_contexts._ready if key == "key"]) == 1
