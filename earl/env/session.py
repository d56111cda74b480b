"""A client of the gateway: plays sessions, many at once, over one stream.

    client = GatewayClient("127.0.0.1:7000")
    session = await client.open("open_spiel/tic_tac_toe", {"opponent": "random"}, seed=7)
    while not session.done:
        outcome = await session.step(choose(session.observation))
    await session.close()

A step that leads to OK, TRUNCATED or ENV_ERROR returns a StepOutcome: a broken environment is data.
What the infrastructure did raises: EnvHostLost (INFRA_ERROR), DeadlineExceeded (TIMEOUT),
UnknownEnvironment, EnvProtocolError. Every wait is bounded, also against a frozen gateway.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import grpc

from earl.env.base import MAX_SEATS, Ending, Limits, Observation
from earl.env.codec import action_message, error_of, observation, seat_metrics
from earl.env.conformance.offered_tools import tools_of
from earl.env.frames import Frames
from earl.errors import (
    DeadlineExceeded,
    EarlError,
    EnvHostLost,
    EnvironmentFailure,
    EnvProtocolError,
    ServiceUnavailable,
)
from earl.message_fields import from_message
from earl.rpc.auth import TlsFiles
from earl.rpc.client import Client
from earl.rpc.errors import from_call
from earl.rpc.outbox import Outbox
from earl.rpc.tokens import Token
from earl.v1 import env_pb2, env_pb2_grpc

log = logging.getLogger(__name__)

# The gateway ends what takes too long; the client waits this much longer before it gives up on it.
MARGIN_S = 10.0
SWEEP_S = 0.25
# Beyond any gateway's own bound: refused here, before it could break the stream of all sessions.
MAX_MESSAGE_BYTES = 16 << 20
_BACKOFF_S = 0.1


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of a step. ending is NONE unless done; queue_s and host_s are the gateway's timings.

    seat_rewards: where several seats are played, the reward of each for this step; empty otherwise, and
    where the environment failed. seat_metrics: the metrics of each seat, if the environment gives them.
    """

    observation: Observation
    reward: float
    done: bool
    ending: Ending
    metrics: Mapping[str, float]
    message: str
    queue_s: float
    host_s: float
    seat_rewards: Sequence[float] = ()
    seat_metrics: Sequence[Mapping[str, float]] = ()

    @property
    def seat(self) -> int:
        """The seat whose turn it is; after the last step, the seat that took it."""
        return self.observation.seat


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of an environment by name. selectable: a session may name those that its agent may call."""

    names: tuple[str, ...]
    selectable: bool

    @classmethod
    def of(cls, info: env_pb2.EnvironmentInfo) -> OfferedTools:
        """The tools that a host declared."""
        return cls(tuple(tool["name"] for tool in tools_of(info)), info.selects_tools)


def ending_of(error: EarlError) -> Ending:
    """Returns how an episode ended that failed with `error`."""
    if isinstance(error, DeadlineExceeded):
        return Ending.TIMEOUT
    if type(error) is EnvironmentFailure:
        return Ending.ENV_ERROR
    return Ending.INFRA_ERROR


class GatewayClient:
    """Opens sessions at one gateway. address: "host:port". Connects when first used."""

    def __init__(self, address: str, *, token: Token = "", tls: TlsFiles | None = None) -> None:
        self.address = address
        self._client = Client(address, env_pb2_grpc.EnvGatewayServiceStub, token=token, tls=tls)
        self._stream: _PlayStream | None = None
        self._next = 0

    async def open(
        self,
        environment: str,
        task: Mapping[str, Any] | None = None,
        seed: int = 0,
        limits: Limits | None = None,
        *,
        traceparent: str = "",
        seats: int = 1,
        tools: Sequence[str] = (),
    ) -> Session:
        """Starts an episode; the returned session holds its first observation.

        seats: how many seats of it this client plays, each when an observation names it.
        tools: names of those that the agent may call; all if empty.
        traceparent: W3C trace context of the work that the episode is a part of.
        Raises UnknownEnvironment, EnvHostLost, DeadlineExceeded, EnvProtocolError, EnvironmentFailure
        (the reset failed), ServiceUnavailable (no gateway within limits.queue_s).
        """
        if not 1 <= seats <= MAX_SEATS:
            raise EnvProtocolError(f"seats = {seats} of {environment}", f"play 1 to {MAX_SEATS} seats")
        limits = limits or Limits()
        loop = asyncio.get_running_loop()
        ends = loop.time() + limits.queue_s
        while True:
            stream = self._connected()
            self._next += 1
            session = Session(stream, self._next, environment, limits, seats, tools)
            try:
                await session._opened(json.dumps(dict(task or {})), seed, traceparent)
                return session
            except asyncio.CancelledError:
                await session.close()
                raise
            except ServiceUnavailable:
                pause_s = _BACKOFF_S * random.uniform(0.5, 1.5)
                if loop.time() + pause_s >= ends:
                    raise
                await asyncio.sleep(pause_s)

    def _connected(self) -> _PlayStream:
        if self._stream is None or self._stream.ended:
            self._stream = _PlayStream(self._client, self.address)
        return self._stream

    async def environments(self, deadline_s: float = 10.0) -> dict[str, int]:
        """Returns the environments of the gateway's hosts: name → capacity in all."""
        request = env_pb2.ListEnvironmentsRequest()
        response = await self._client.call("ListEnvironments", request, deadline_s=deadline_s)
        return {entry.environment.name: entry.capacity for entry in response.entries if entry.hosts}

    async def offered_seats(self, deadline_s: float = 10.0) -> dict[str, int]:
        """Returns the most seats that a client may play of each environment of the gateway's hosts."""
        request = env_pb2.ListEnvironmentsRequest()
        response = await self._client.call("ListEnvironments", request, deadline_s=deadline_s)
        return {each.environment.name: max(1, each.environment.seats) for each in response.entries}

    async def tools(self, deadline_s: float = 10.0) -> dict[str, OfferedTools]:
        """Returns the tools of each environment of the gateway's hosts, by its name."""
        request = env_pb2.ListEnvironmentsRequest()
        response = await self._client.call("ListEnvironments", request, deadline_s=deadline_s)
        infos = [entry.environment for entry in response.entries if entry.hosts]
        return {info.name: OfferedTools.of(info) for info in infos}

    async def close(self) -> None:
        """Ends the stream; sessions still open fail with EnvHostLost."""
        if self._stream is not None:
            await self._stream.close()
        await self._client.close()


@dataclass(slots=True, eq=False)
class Session:
    """One episode. Made by GatewayClient.open; used by one coroutine at a time."""

    _stream: _PlayStream
    number: int
    environment: str
    _limits: Limits
    # How many of its seats the client plays.
    seats: int = 1
    # Names of the tools that it may call; all if empty.
    tools: Sequence[str] = ()
    observation: Observation = field(default_factory=partial(Observation, ""))
    done: bool = False
    # What the session waits for, how long, also after each sign of life, and the loop time until
    # which it does; set by the stream.
    answer: asyncio.Future[env_pb2.Result] | None = None
    within_s: float = 0.0
    ends: float = 0.0
    _seq: int = 0

    async def _opened(self, task_json: str, seed: int, traceparent: str) -> None:
        limits = self._limits
        opening = env_pb2.Open(
            session=self.number,
            environment=self.environment,
            task_json=task_json,
            seed=seed,
            traceparent=traceparent,
            seats=self.seats if self.seats > 1 else 0,
            tools=self.tools,
            **asdict(limits),
        )
        message = env_pb2.ClientMessage(open=opening)
        outcome = await self._request(message, limits.queue_s + limits.reset_s)
        if outcome.ending is Ending.ENV_ERROR:
            raise EnvironmentFailure(outcome.message)

    async def step(self, action: str) -> StepOutcome:
        """Act, with a text or an Action; the outcome's observation is also the session's.

        Raises as the module says, and EnvProtocolError for an action that cannot be sent.
        """
        if self.done:
            raise EnvProtocolError(f"session {self.number} of {self.environment} is over", "open a new one")
        sent = action_message(action)
        self._seq += 1
        step = env_pb2.Step(session=self.number, seq=self._seq, action=sent)
        return await self._request(env_pb2.ClientMessage(step=step), self._limits.step_s)

    async def _request(self, message: env_pb2.ClientMessage, within_s: float) -> StepOutcome:
        try:
            result = await self._stream.ask(self, message, within_s)
        except EarlError:
            self._ended()
            raise
        ending = Ending(result.ending)
        if ending in (Ending.INFRA_ERROR, Ending.TIMEOUT):
            self._ended()
            raise error_of(result.message)
        if result.message and not result.done:  # refused: the session's state is unchanged
            self._seq -= 1
            raise error_of(result.message)
        if self.seats > 1 and result.seq and not result.seat_rewards and ending is not Ending.ENV_ERROR:
            self._ended()
            text = f"step {result.seq} of {self.environment} has no rewards for its {self.seats} seats"
            raise EnvProtocolError(text, "update the gateway and its hosts: an older one plays one seat")
        self.observation = observation(result.observation)
        if result.done:
            self._ended()
        return from_message(
            StepOutcome,
            result,
            observation=self.observation,
            ending=ending,
            metrics=dict(result.metrics) if result.done else {},
            seat_metrics=seat_metrics(result),
        )

    def _ended(self) -> None:
        self.done = True
        self._stream.forget(self)

    async def close(self) -> None:
        """Ends the session, wherever it is. Idempotent; never waits."""
        if not self.done:
            self._ended()


class _PlayStream:
    """One Play stream and the sessions that wait for answers on it."""

    def __init__(self, client: Client, address: str) -> None:
        self._address = address
        self._call = client.stream("Play", deadline_s=None)
        self._frames = Frames(self._call, env_pb2.PlayRequest)
        self._outbox = Outbox()
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[int, Session] = {}
        self._error: EarlError | None = None
        works = (self._read(), self._frames.send(self._outbox), self._sweep())
        self._tasks = [asyncio.create_task(work) for work in works]
        for task in self._tasks[:2]:
            task.add_done_callback(self._task_ended)

    @property
    def ended(self) -> bool:
        return self._error is not None

    async def ask(self, session: Session, message: env_pb2.ClientMessage, within_s: float) -> Any:
        """Sends and waits for the session's next Result; bounded by within_s and a margin."""
        if self._error is not None:
            raise _failing(session, self._error)
        if message.ByteSize() > MAX_MESSAGE_BYTES:
            text = f"message of {message.ByteSize()} bytes is larger than {MAX_MESSAGE_BYTES}"
            raise EnvProtocolError(text, "shorten the action or the task")
        session.within_s = within_s
        session.ends = self._loop.time() + within_s + MARGIN_S
        session.answer = self._loop.create_future()
        self._sessions[session.number] = session
        self._outbox.put(message)
        return await session.answer

    def forget(self, session: Session) -> None:
        """Tells the gateway that no more requests to the session will follow."""
        self._sessions.pop(session.number, None)
        if session.answer is not None and not session.answer.done():
            session.answer.cancel()
        self._outbox.put(env_pb2.ClientMessage(close=env_pb2.Close(session=session.number)))

    async def _read(self) -> None:
        while (messages := await self._frames.read()) is not None:
            for message in messages:
                kind = message.WhichOneof("message")
                result = message.result if kind == "result" else message.progress
                session = self._sessions.get(result.session)
                if session is None or session.answer is None or session.answer.done():
                    continue
                if kind == "progress":
                    session.ends = self._loop.time() + session.within_s + MARGIN_S
                else:
                    session.answer.set_result(result)

    async def _sweep(self) -> None:
        """Fails the sessions that a frozen gateway left without an answer."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = self._loop.time()
            for session in [s for s in self._sessions.values() if s.ends < now]:
                if session.answer is not None and not session.answer.done():
                    text = f"no answer from the gateway at {self._address} for {session.environment}"
                    session.answer.set_exception(DeadlineExceeded(text, "see whether it is overloaded"))

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if self._error is not None or task.cancelled():
            return
        cause = task.exception()
        if cause is None and task is not self._tasks[0]:
            return  # the call has ended: its reader knows why
        if isinstance(cause, grpc.aio.AioRpcError):
            self._fail(from_call(cause, f"Play at {self._address}"))
        else:
            text = f"the stream to the gateway at {self._address} ended"
            self._fail(EnvHostLost(f"{text}: {cause}" if cause else text))

    def _fail(self, error: EarlError) -> None:
        """Ends the stream. Sessions in progress have lost their host; those being opened may try again."""
        self._error = error
        self._outbox.close()
        for task in self._tasks:
            task.cancel()
        for session in self._sessions.values():
            if session.answer is not None and not session.answer.done():
                session.answer.set_exception(_failing(session, error))
        self._sessions.clear()

    async def close(self) -> None:
        if self._error is None:
            self._fail(EnvHostLost("the client was closed"))
        self._call.cancel()
        await asyncio.wait(self._tasks)


def _failing(session: Session, error: EarlError) -> EarlError:
    """Returns the error that a session raises when its stream ended with `error`: an unreachable gateway is,
    to a session that plays, its host lost; one that only opens may try again."""
    lost = session._seq > 0 and isinstance(error, ServiceUnavailable)
    return (EnvHostLost if lost else type(error))(error.message, error.remedy)
