"""The examiner's end of one host: its streams, one after the other, and the sessions requested of it.

    servicer.py ─ attach, received, lost ─► HostLink ─► Judge
    checks ◄──── results ── Episode ◄──────┘   Every wait is bounded; Progress begins a bound again.

A stream may be lost and come again: what was in flight is then repeated, as the gateway does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from earl.env import stream_codec
from earl.env.base import Action
from earl.env.conformance.rules import Judge
from earl.errors import DeadlineExceeded, EarlError, EnvHostLost, EnvProtocolError
from earl.rpc.outbox import Outbox
from earl.waiting import deadline

# A step that sends Progress again and again is waited for at most this many times its bound.
MAX_EXTENSIONS = 20
FENCE_S = 5.0


class HostLink:
    """One host under test. lease_s, max_text_bytes: as in its Welcome."""

    def __init__(self, lease_s: float, max_text_bytes: int, clock: Callable[[], float]) -> None:
        self.judge = Judge(max_text_bytes)
        self.hello: Any = None
        self.capacity = 0
        self.lease_s = lease_s
        # Seconds from each ping to its pong.
        self.pongs_s: list[float] = []
        self.drained = asyncio.Event()
        self.attached = asyncio.Event()
        self.detached = asyncio.Event()
        self._credited = asyncio.Event()
        self._clock = clock
        self._outbox: Outbox | None = None
        self._waiting: dict[tuple[int, int], _Waiting] = {}
        self._held: set[int] = set()
        self._next = secrets.randbits(48) << 8
        self._nonces = itertools.count(1)
        self._pings: dict[int, tuple[float, list[int], asyncio.Future[None]]] = {}
        self._gone: EarlError | None = None

    @property
    def name(self) -> str:
        return self.hello.host

    @property
    def ended(self) -> bool:
        """Returns whether the host's process has ended."""
        return self._gone is not None

    @property
    def epoch(self) -> int:
        return self.hello.epoch

    @property
    def environments(self) -> dict[str, Any]:
        """The environments that the host serves: name → EnvironmentInfo."""
        return {info.name: info for info in self.hello.environments}

    # --- what the servicer tells -------------------------------------------------------------

    def attach(self, hello: Any, outbox: Outbox) -> None:
        """A stream began with this Hello. Raises EnvProtocolError if it may not continue."""
        wrong = self.judge.hello(hello)
        if wrong:
            raise EnvProtocolError(wrong, "fix the host's Hello")
        if self.hello is not None and hello.epoch <= self.epoch:
            violation = f"a new stream has epoch {hello.epoch}, the one before it had {self.epoch}"
            self.judge.violated("reconnect", violation)
            raise EnvProtocolError(violation, "count the connections of an instance")
        if self._outbox is not None:
            self._outbox.close(EnvProtocolError(f"fenced by epoch {hello.epoch} of the same host"))
        self.hello, self.capacity, self._outbox = hello, hello.capacity, outbox
        self._pings.clear()
        outbox.put(stream_codec.welcome(self.lease_s, self.judge.max_text_bytes, sorted(self._held)))
        for (session, seq), waiting in self._waiting.items():
            if session in self._held:
                self.judge.requested(session, seq)
                outbox.put(waiting.message)
        self.detached.clear()
        self.attached.set()

    def lost(self, epoch: int) -> None:
        """The stream of this epoch ended."""
        if epoch == self.epoch:
            self.attached.clear()
            self.detached.set()

    def gone(self, error: EarlError) -> None:
        """Tells everyone who waits for the host that its process has ended."""
        self._gone = error
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(error)

    def received(self, message: Any) -> None:
        """Takes one message of the host's current stream."""
        kind = message.WhichOneof("message")
        if kind == "result":
            result = message.result
            if self.judge.result(result):
                waiting = self._waiting.get((result.session, result.seq))
                if waiting is not None and not waiting.answer.done():
                    waiting.answer.set_result(result)
        elif kind == "progress":
            progress = message.progress
            waiting = self._waiting.get((progress.session, progress.seq))
            if self.judge.progress(progress) and waiting is not None:
                waiting.ends = self._clock() + waiting.within_s
        elif kind == "pong":
            self._ponged(message.pong.nonce)
        elif kind == "credit":
            self.judge.credit(message.credit)
            self.capacity = message.credit.capacity
            self._credited.set()
        elif kind == "drain":
            self.drained.set()
        else:
            what = "a second Hello" if kind == "hello" else "an empty HostMessage"
            self.judge.violated("frames", what)

    # --- pings -------------------------------------------------------------------------------

    def ping(self) -> asyncio.Future[None]:
        """Sends a ping; the future is done when its pong arrives, never if the stream is lost first."""
        nonce = next(self._nonces)
        answered = asyncio.get_running_loop().create_future()
        self._pings[nonce] = (self._clock(), self.judge.fence(), answered)
        self._say(stream_codec.ping(nonce))
        return answered

    def unanswered_s(self) -> float:
        """Age of the oldest ping that waits for its pong."""
        return max((self._clock() - sent for sent, _, _ in self._pings.values()), default=0.0)

    async def fence(self, within_s: float = FENCE_S) -> None:
        """Waits until the host has read everything that was sent to it. Raises DeadlineExceeded."""
        text = f"no Pong from {self.name} within {within_s:g} s"
        late = DeadlineExceeded(text, "answer Ping from the loop that reads the stream")
        async with deadline(within_s, late):
            await self.ping()

    def _ponged(self, nonce: int) -> None:
        ping = self._pings.pop(nonce, None)
        if ping is None:
            self.judge.violated("pings", f"a Pong with nonce {nonce}, which no Ping had")
            return
        sent, sessions, answered = ping
        self.pongs_s.append(self._clock() - sent)
        self.judge.fenced(sessions)
        if not answered.done():
            answered.set_result(None)

    def pong_p99_s(self) -> float:
        if len(self.pongs_s) < 2:
            return max(self.pongs_s, default=0.0)
        return statistics.quantiles(self.pongs_s, n=100, method="inclusive")[-1]

    # --- sessions ----------------------------------------------------------------------------

    def open(self, environment: str, reset_s: float, step_s: float, seats: int = 1) -> Episode:
        """Returns a session with a number of its own; nothing is sent to the host yet."""
        self._next += 1
        self._held.add(self._next)
        self.judge.opened(self._next, environment, seats)
        return Episode(self, self._next, environment, reset_s, step_s, seats)

    async def ask(self, session: int, seq: int, message: Any, within_s: float, in_order: bool = True) -> Any:
        """The Result of a Reset or Step. Raises DeadlineExceeded, EnvHostLost."""
        if self._gone is not None:
            raise self._gone
        self.judge.requested(session, seq, in_order)
        answer = asyncio.get_running_loop().create_future()
        now = self._clock()
        waiting = self._waiting[session, seq] = _Waiting(message, within_s, now + within_s, answer)
        last = now + MAX_EXTENSIONS * within_s
        self._say(message)
        try:
            while (left_s := min(waiting.ends, last) - self._clock()) > 0:
                done, _ = await asyncio.wait({answer}, timeout=left_s)
                if done:
                    return answer.result()
        finally:
            if self._waiting.get((session, seq)) is waiting:
                del self._waiting[session, seq]
        what = "reset" if seq == 0 else f"step {seq}"
        raise DeadlineExceeded(f"no result of {what} within {within_s:g} s", "bound what it waits for")

    def drop(self, session: int, message: Any) -> None:
        """Says Close or Cancel, after which the gateway no longer holds the session."""
        self._held.discard(session)
        self._say(message)

    def forget(self, session: int) -> None:
        self._held.discard(session)

    def _say(self, message: Any) -> None:
        if self._outbox is not None:
            self._outbox.put(message)

    # --- the stream --------------------------------------------------------------------------

    async def drop_stream(self, within_s: float) -> None:
        """Ends the stream from this side and waits for the host to come back. Raises DeadlineExceeded."""
        assert self._outbox is not None
        self.attached.clear()
        self._outbox.close()
        text = f"{self.name} did not come back within {within_s:g} s of losing its stream"
        late = DeadlineExceeded(text, "dial again, with the same instance and epoch + 1")
        async with deadline(within_s, late):
            await self.attached.wait()

    async def until_capacity(self, least: int, within_s: float) -> None:
        """Waits until the host offers this many sessions, at most within_s."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.capacity < least:
                    self._credited.clear()
                    await self._credited.wait()

    def hang_up(self) -> None:
        """Ends the stream for good."""
        self.gone(EnvHostLost("the examination has ended"))
        if self._outbox is not None:
            self._outbox.close()


@dataclass(slots=True, eq=False)
class _Waiting:
    """An answer that is waited for, until `ends`."""

    message: Any
    within_s: float
    ends: float
    answer: asyncio.Future[Any]


class Episode:
    """One session with the host. reset_s, step_s: bounds of a reset and a step. seats: how many it plays."""

    def __init__(
        self, link: HostLink, number: int, environment: str, reset_s: float, step_s: float, seats: int = 1
    ) -> None:
        self.link = link
        self.number = number
        self.environment = environment
        self.seq = 0
        self.done = False
        self._reset_s = reset_s
        self._step_s = step_s
        self._seats = seats if seats > 1 else 0
        self._last: tuple[Any, float] | None = None

    async def reset(self, seed: int, task: Mapping[str, Any]) -> Any:
        """The Result with the first observation. Raises DeadlineExceeded, EnvHostLost; so does `step`."""
        message = stream_codec.reset(
            self.number, self.environment, json.dumps(dict(task)), seed, self._reset_s, seats=self._seats
        )
        self._last = (message, self._reset_s)
        return self._noted(await self.link.ask(self.number, 0, message, self._reset_s))

    async def step(self, action: Action) -> Any:
        self.seq += 1
        message = stream_codec.step(self.number, self.seq, action, self._step_s)
        self._last = (message, self._step_s)
        return self._noted(await self.link.ask(self.number, self.seq, message, self._step_s))

    async def repeat(self) -> Any:
        """Asks the last Reset or Step again."""
        assert self._last is not None
        message, within_s = self._last
        return await self.link.ask(self.number, self.seq, message, within_s)

    async def wrong_step(self, seq: int, action: Action, within_s: float) -> Any:
        """A Step whose seq is not the next."""
        message = stream_codec.step(self.number, seq, action, self._step_s)
        return await self.link.ask(self.number, seq, message, within_s, in_order=False)

    def _noted(self, result: Any) -> Any:
        self.done = self.done or result.done
        return result

    def forget(self) -> None:
        """Ends the session as a gateway does while no stream is up: the next Welcome does not name it."""
        self.link.forget(self.number)

    def cancel(self) -> None:
        self.link.judge.cancelled(self.number)
        self.link.drop(self.number, stream_codec.cancel(self.number, self.seq, "the examiner cancels it"))

    def close(self) -> None:
        self.link.judge.closed(self.number)
        self.link.drop(self.number, stream_codec.close(self.number))
