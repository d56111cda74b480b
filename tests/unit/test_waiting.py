"""The first of several things that may happen, whose others have ended when the wait has; deadlines;
cancellations that a library loses; and threads that outlast a cancellation."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from earl.errors import DeadlineExceeded
from earl.waiting import cancellable, deadline, in_thread, until_first


async def test_the_others_have_ended_when_the_first_has():
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("other")

    happened = asyncio.Event()
    happened.set()
    assert await until_first(waits(), happened.wait()) == [False, True]
    assert ended == ["other"]


async def test_several_may_end_together():
    happened = asyncio.Event()
    happened.set()
    assert await until_first(happened.wait(), happened.wait()) == [True, True]


async def test_nothing_has_ended_when_the_time_has_passed():
    assert await until_first(asyncio.Event().wait(), asyncio.Event().wait(), timeout_s=0.01) == [False, False]


async def test_tasks_and_futures_continue_and_keep_their_errors():
    async def fails() -> None:
        raise ValueError("failed")

    failing, endless = asyncio.create_task(fails()), asyncio.create_task(asyncio.Event().wait())
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waits = failing, endless, future, asyncio.Event().wait()
    assert await until_first(*waits) == [True, False, False, False]
    assert not endless.done() and not future.done()
    with pytest.raises(ValueError, match="failed"):
        await failing
    endless.cancel()


async def test_an_error_is_raised_and_the_others_are_ended():
    other = asyncio.Event()

    async def fails() -> None:
        raise ValueError("failed")

    async def waits() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        other.set()

    with pytest.raises(ValueError, match="failed"):
        await until_first(waits(), fails())
    assert other.is_set()


async def test_cancelling_the_wait_ends_them_all():
    ended: list[int] = []

    async def waits(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    waiting = asyncio.create_task(until_first(waits(1), waits(2)))
    while not waiting.done():
        await asyncio.sleep(0)
        if len(asyncio.all_tasks()) == 4:  # this one, the wait and both works
            await asyncio.sleep(0)
            waiting.cancel()
            break
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert sorted(ended) == [1, 2]


async def test_a_deadline_that_has_passed_raises_its_error_and_no_other():
    late = DeadlineExceeded("nothing came", "send something")
    with pytest.raises(DeadlineExceeded) as raised:
        async with deadline(0.0, late):
            await asyncio.Event().wait()
    assert raised.value is late
    with pytest.raises(KeyError):
        async with deadline(60.0, late):
            raise KeyError
    async with deadline(60.0, late):
        await asyncio.sleep(0)


async def test_a_timeout_within_the_block_is_not_taken_for_the_deadline():
    refused = TimeoutError("[Errno 110] Connection timed out")
    with pytest.raises(TimeoutError) as raised:
        async with deadline(60.0, DeadlineExceeded("nothing came", "send something")):
            raise refused
    assert raised.value is refused


async def test_of_several_that_failed_the_first_in_order_is_raised():
    async def fails(error: Exception) -> None:
        raise error

    for errors in ([ValueError(), KeyError()], [KeyError(), ValueError()]):
        with pytest.raises(type(errors[0])):
            await until_first(*(fails(error) for error in errors))


@pytest.mark.parametrize("fails", [False, True])
async def test_a_lost_cancellation_is_raised(fails: bool):
    async def loses() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if fails:
            raise ValueError("failed just then")

    async def waits() -> None:
        while True:
            with suppress(ValueError), cancellable():
                await loses()

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_deadline_whose_cancellation_is_lost_passes():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            with cancellable(), suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()


async def test_earlier_cancellations_and_deadlines_within_are_no_loss():
    async def cleans_up() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with cancellable(), suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()
            with pytest.raises(ValueError, match="its own"), cancellable():
                raise ValueError("its own") from None
        return "cleaned up"

    task = asyncio.create_task(cleans_up())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "cleaned up"


async def test_a_cancelled_call_ends_after_its_thread():
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(20.0)
        ended.set()

    call = asyncio.create_task(in_thread(work))
    assert await asyncio.to_thread(begun.wait, 20.0)
    call.cancel()
    await asyncio.sleep(0)
    assert not call.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()
    assert await in_thread(lambda: 3) == 3
