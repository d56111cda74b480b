"""Runs the sessions of one host: async methods in tasks, blocking ones in threads, cheap ones inline, and
environments that ask for it in processes of their own (isolation.py).

A slow environment never delays another's; one that nevertheless holds the loop is named (watch.py). A
call that is cancelled but cannot be stopped keeps its thread: it is counted as stuck, and the capacity
offered to the gateway shrinks by it until it ends.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from earl.env.base import Ending, Environment, Factory
from earl.env.codec import Failure, action, answer, credit, progress
from earl.env.hosted import Admission, HostedSession
from earl.env.isolation import IsolatedEnvironment, isolated
from earl.env.serve import described
from earl.env.threads import DaemonThreads
from earl.env.tool_calls import MAX_CHARACTERS
from earl.env.watch import HOLD_S, LoopWatch
from earl.errors import (
    EarlError,
    EnvBackendLost,
    EnvHostLost,
    EnvironmentFailure,
    EnvProtocolError,
    ServiceUnavailable,
)
from earl.obs import tracing

log = logging.getLogger(__name__)

# Takes an earl.v1.HostMessage.
Send = Callable[[Any], None]
Call = Callable[[], Any]


class SessionRunner:
    """The sessions of a host.

    environments: name → factory. capacity: sessions open at once. send: queues a message to the
    gateway; messages sent while no stream is up may be lost, the gateway asks again. isolation: "thread"
    or "process" for all of them instead of what each says. hold_s: how long an environment may hold the
    loop before it is named; 0 for no watch. Must be made and used on a running loop.
    """

    def __init__(
        self,
        environments: Mapping[str, Factory],
        capacity: int,
        send: Send,
        *,
        isolation: str = "",
        hold_s: float = HOLD_S,
    ) -> None:
        self.capacity = capacity
        # The gateway's bounds on a Result, and on an action's text with calls; it says so in its Welcome.
        self.max_text_bytes = 1 << 20
        self.max_action_characters = MAX_CHARACTERS
        self.infos = {name: described(factory) for name, factory in environments.items()}
        apart, self._pools = isolated(environments, self.infos, isolation)
        self._factories = {**environments, **apart}
        # Whose methods are called: the environment's own, or those that ask another process.
        self._called = {**self.infos, **dict.fromkeys(apart, IsolatedEnvironment)}
        self.watch = LoopWatch(hold_s) if hold_s else None
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._threads = DaemonThreads("environment")
        self._sessions: dict[int, HostedSession] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._open = 0
        self._stuck = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def open_sessions(self) -> int:
        """Sessions whose episode is not over."""
        return self._open

    @property
    def offered(self) -> int:
        """Capacity less the calls that are cancelled and still run."""
        return max(0, self.capacity - self._stuck)

    async def wait_empty(self) -> None:
        """Waits until no episode is in progress."""
        await self._empty.wait()

    def close(self) -> None:
        """Drops every session; environments are closed as far as they are not inside a call."""
        self.keep(())
        for pool in self._pools:
            pool.close()
        self._threads.close()
        if self.watch is not None:
            self.watch.close()

    async def wait_closed(self, within_s: float) -> None:
        """Waits until the calls that `close` left in progress have ended, at most within_s."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=within_s)

    def keep(self, held: Collection[int]) -> None:
        """Drops the sessions that the gateway no longer holds."""
        for session in [s for s in self._sessions.values() if s.id not in held]:
            self.drop(session.id)

    # --- what the gateway asks ---------------------------------------------------------------

    def reset(self, message: Any) -> None:
        """Starts a session of an earl.v1.Reset; a repeated one is answered with the same result."""
        known = self._sessions.get(message.session)
        if known is not None:
            if known.admit(0) is Admission.REPEAT:
                self._send(known.answer)
            return
        traceparent, seats = tracing.checked(message.traceparent), max(1, message.seats)
        tools = tuple(message.tools)
        session = HostedSession(message.session, message.environment, traceparent, seats, tools)
        refusal = self._refusal(message)
        self._sessions[session.id] = session
        self._open += 1
        self._empty.clear()
        if refusal is not None:
            self._finished(session, 0, refusal)
            return
        task = json.loads(message.task_json or "{}")
        method = self._called[session.name].reset
        self._run(session, 0, method, partial(self._call_reset, session, message.seed, task))

    def _refusal(self, message: Any) -> Failure | None:
        if message.environment not in self._factories:
            text = f"this host does not serve {message.environment!r}"
            return Failure(Ending.INFRA_ERROR, "UnknownEnvironment", text)
        if self._open >= self.capacity:
            text = f"this host holds {self._open} of {self.capacity} sessions"
            return Failure(Ending.INFRA_ERROR, "EnvHostLost", text)
        offered = self.infos[message.environment].seats
        if message.seats > max(1, offered):
            text = f"{message.environment} has {offered} seats for a client, {message.seats} were asked for"
            return Failure(Ending.INFRA_ERROR, "EnvProtocolError", text)
        if message.tools and not self.infos[message.environment].selects_tools:
            text = f"{message.environment} cannot select tools, {', '.join(message.tools)} were asked for"
            return Failure(Ending.INFRA_ERROR, "EnvProtocolError", text)
        return None

    def step(self, message: Any) -> None:
        """Takes an earl.v1.Step; a repeated seq is answered with the same result, a wrong one refused."""
        session = self._sessions.get(message.session)
        if session is None:
            text = f"this host has no session {message.session}"
            failure = Failure(Ending.INFRA_ERROR, "EnvHostLost", text)
            self._send(answer(message.session, message.seq, failure))
            return
        admission = session.admit(message.seq)
        if admission is Admission.RUN:
            assert session.environment is not None
            environment = session.environment
            self._run(
                session, message.seq, environment.step, partial(environment.step, action(message.action))
            )
        elif admission is Admission.REPEAT:
            self._send(session.answer)
        elif admission is Admission.REFUSE:
            text = f"step {message.seq} of session {session.id} follows step {session.seq}"
            failure = Failure(Ending.INFRA_ERROR, "EnvProtocolError", text)
            self._send(answer(session.id, message.seq, failure))

    def drop(self, session_id: int) -> None:
        """Closes or cancels a session; what runs in it is stopped if it can be."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        session.dropped = True
        if not session.done:
            self._ended()
        if session.running:
            self._left(1)
            if session.task is not None:
                session.task.cancel()
        else:
            self._release(session)

    def _offer(self) -> None:
        self._send(credit(self.offered))

    def _ended(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._empty.set()

    # --- calls of environments ---------------------------------------------------------------

    def _call_reset(self, session: HostedSession, seed: int, task: dict[str, Any]) -> Any:
        environment = session.environment = self._factories[session.name]()
        environment.report_progress = partial(self._report_progress, session)
        environment.in_thread = self._in_thread
        environment.max_action_characters = self.max_action_characters
        environment.seats_played = session.seats
        environment.tools_allowed = session.tools
        if session.tools and not isinstance(environment, IsolatedEnvironment):
            environment.tools = environment.allowed_of(environment.tools)
        return environment.reset(seed, task)

    def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        return self._threads.call(partial(function, *arguments), self._left)

    def _left(self, change: int) -> None:
        """A thread was left behind (1), or has ended after all (-1)."""
        self._stuck += change
        self._offer()

    def _run(self, session: HostedSession, seq: int, method: Callable[..., Any], call: Call) -> None:
        """Starts a session's `method`; `call` does so with its arguments."""
        session.start(seq)
        session.began_ns = time.time_ns() if session.traceparent else 0
        environment = session.environment or self._called[session.name]
        if inspect.iscoroutinefunction(method):
            session.task = self._spawn(_awaited(session.name, seq, call))
            session.task.add_done_callback(partial(self._task_ended, session, seq))
        elif environment.blocking:
            self._threads.submit(partial(self._threaded, session, seq, call))
        else:
            self._finished(session, seq, _guarded(session.name, seq, call))

    def _threaded(self, session: HostedSession, seq: int, call: Call) -> None:
        outcome = _guarded(session.name, seq, call)
        self._on_loop(self._finished, session, seq, outcome)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            log.info("a call ended after its host did")

    def _task_ended(self, session: HostedSession, seq: int, task: asyncio.Task[Any]) -> None:
        """Sends the task's result or fault; also called for a task that was cancelled before it began."""
        session.task = None
        cancelled = Failure(Ending.TIMEOUT, "EnvironmentFailure", f"step {seq} was cancelled")
        self._finished(session, seq, cancelled if task.cancelled() else task.result())

    def _spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(coroutine)
        self._keep(task)
        return task

    def _keep(self, future: asyncio.Future[Any]) -> None:
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)

    def _report_progress(self, session: HostedSession, message: str) -> None:
        self._on_loop(self._send, progress(session.id, session.seq, message))

    def _finished(self, session: HostedSession, seq: int, outcome: Any) -> None:
        if session.dropped:
            session.running = False
            self._left(-1)
            self._release(session)
            return
        try:
            message = answer(session.id, seq, outcome, session.seats)
            if message.result.ByteSize() > self.max_text_bytes:
                raise EnvProtocolError(
                    f"result of {message.result.ByteSize()} bytes is larger than {self.max_text_bytes}"
                )
        except EnvProtocolError as error:
            log.warning("%s: %s", session.name, error)
            message = answer(session.id, seq, Failure(Ending.ENV_ERROR, "EnvProtocolError", str(error)))
        done = message.result.done
        session.finish(message, done)
        if session.traceparent:
            what, fields = ("step" if seq else "reset"), {"seq": seq, "environment": session.name}
            began_ns = session.began_ns or time.time_ns()
            tracing.record(f"host {what}", session.traceparent, began_ns, time.time_ns(), fields)
        self._send(message)
        if done:
            self._ended()
            self._release(session)

    def _release(self, session: HostedSession) -> None:
        """Closes the environment; the session itself stays known, with its last answer, until dropped."""
        environment, session.environment = session.environment, None
        if environment is None or type(environment).close is Environment.close:
            return
        close = partial(_guarded, session.name, -1, environment.close)
        if inspect.iscoroutinefunction(environment.close):
            self._spawn(_closed(session.name, environment))
        elif environment.blocking:
            self._keep(self._threads.call(close))
        else:
            close()


async def _awaited(name: str, seq: int, call: Call) -> Any:
    """Returns the call's outcome, or the Failure that its exception maps to."""
    try:
        outcome = call()
        return await outcome if inspect.isawaitable(outcome) else outcome
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the episode's end, which says so
        return _failure(name, seq, error)


def _failure(name: str, seq: int, error: BaseException) -> Failure:
    """Logs `error` and returns how its episode ended; EARL's own errors keep their name and their
    words."""
    what = "close" if seq < 0 else f"step {seq}" if seq else "reset"
    log.warning("%s: %s failed: %r", name, what, error, exc_info=not isinstance(error, EarlError))
    if isinstance(error, ConnectionError):
        error = EnvBackendLost(f"{what} raised {type(error).__name__}: {error}")
    if isinstance(error, (EnvHostLost, ServiceUnavailable)):
        return Failure(Ending.INFRA_ERROR, type(error).__name__, str(error))
    if isinstance(error, EnvironmentFailure):
        return Failure(Ending.ENV_ERROR, type(error).__name__, str(error))
    return Failure(Ending.ENV_ERROR, "EnvironmentFailure", f"{what} raised {type(error).__name__}: {error}")


def _guarded(name: str, seq: int, call: Call) -> Any:
    """Returns the call's outcome, or the Failure that its exception maps to."""
    try:
        return call()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the episode's end, which says so
        return _failure(name, seq, error)


async def _closed(name: str, environment: Environment) -> None:
    try:
        await environment.close()
    except Exception:
        log.exception("%s: close failed", name)
