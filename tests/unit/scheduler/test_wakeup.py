"""Checks that waiters are woken in turn, and that nobody waits longer than asked for."""

from __future__ import annotations

import asyncio

from services.scheduler.wakeup import Wakeup

LONG_S = 30.0


async def _waiting(wakeup: Wakeup, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(wakeup.wait(LONG_S)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def _settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_ring_wakes_the_longest_waiting_and_a_cancelled_one_takes_none() -> None:
    wakeup = Wakeup()
    first, second, third = await _waiting(wakeup, 3)
    wakeup.notify_one()
    await _settled()
    assert (first.done(), second.done(), third.done()) == (True, False, False)
    second.cancel()
    await _settled()
    wakeup.notify_one()
    await asyncio.wait_for(third, LONG_S)


async def test_a_ring_for_all_wakes_all_and_none_that_comes_later() -> None:
    wakeup = Wakeup()
    tasks = await _waiting(wakeup, 3)
    wakeup.notify()
    await asyncio.wait_for(asyncio.gather(*tasks), LONG_S)
    [later] = await _waiting(wakeup, 1)
    await _settled()
    assert not later.done()
    wakeup.close()
    await asyncio.wait_for(later, LONG_S)


async def test_first_looks_again_at_every_ring_until_it_finds_something() -> None:
    wakeup, looks = Wakeup(), []

    def look(now: float) -> int | None:
        looks.append(now)
        return len(looks) if len(looks) == 3 else None

    task = asyncio.create_task(wakeup.first(look, LONG_S))
    for _ in range(2):
        await _settled()
        wakeup.notify()
    assert await asyncio.wait_for(task, LONG_S) == 3 and looks == sorted(looks)


async def test_first_finds_nothing_in_no_time_or_once_closed() -> None:
    wakeup = Wakeup()
    assert await wakeup.first(lambda now: None, 0.0) is None
    there: list[int] = []
    task = asyncio.create_task(wakeup.first(lambda now: there or None, LONG_S))
    await _settled()
    there.append(1)
    wakeup.close()
    assert await asyncio.wait_for(task, LONG_S) is None
    assert await asyncio.wait_for(wakeup.first(lambda now: there, LONG_S), LONG_S) is None


async def test_a_ring_for_one_wakes_that_one_alone() -> None:
    wakeup = Wakeup()
    a, b = (asyncio.create_task(wakeup.wait(LONG_S, name)) for name in ("a", "b"))
    await _settled()
    wakeup.notify_name("b")
    wakeup.notify_name("nobody")
    await asyncio.wait_for(b, LONG_S)
    assert not a.done()
    wakeup.notify_name("b")  # waits no more
    wakeup.notify_one()
    await asyncio.wait_for(a, LONG_S)
