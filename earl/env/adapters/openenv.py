"""A remote OpenEnv server (package openenv 0.10) as an environment, over the server's own WebSocket.

    class Wordle(OpenEnv):
        name = "openenv/wordle"
        url = "ws://127.0.0.1:8000"
        action_field = "message"     # the agent's text goes into this field of the server's action
        text_field = "prompt"        # and this field of its observation is what the agent reads

Needs the package websockets and nothing of openenv, whose dependencies are a hundred packages. One
connection is one session of the server, and one episode:

    {"type": "reset", "data": {"seed": 7, **task}} ─► {"type": "observation", "data": {
    {"type": "step", "data": {**action}}           ─►     "observation": {…}, "reward": 0.5, "done": false}}
    {"type": "close"}                             or  {"type": "error", "data": {"code": …, "message": …}}

Without action_field an action is a JSON object; without text_field an observation is shown as one. An action
that is no such object, or that the server's own validation refuses, is the agent's doing: it is told so,
without a reward, and the episode continues. Everything else that goes wrong is not: a server that cannot be
reached, that dies or does not answer in time is EnvBackendLost, so INFRA_ERROR; its environment's failure,
a message larger than MAX_MESSAGE_BYTES, or an end without a reward (null, which is also what a server makes
of NaN), is ENV_ERROR. A server that is full is asked again until open_s have passed.

Answers carry no number that says which request they answer. So a ping follows each answer: what the server
sent before the pong, or before the next request, is a message that nobody asked for, and ENV_ERROR too. It is
never taken as the answer to the next request.

Metrics: steps, invalid (actions refused), return.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from websockets.asyncio.client import ClientConnection, connect  # pyright: ignore[reportMissingImports]
from websockets.exceptions import ConnectionClosed, WebSocketException  # pyright: ignore[reportMissingImports]

from earl.env.base import Environment, Observation, StepResult
from earl.errors import ConfigError, EnvBackendLost, EnvironmentFailure, EnvProtocolError

MAX_MESSAGE_BYTES = 4 << 20
CLOSE_S = 2.0
_RETRY_S = 0.05
_MAX_REASON = 300
_TOO_LARGE = 1009  # RFC 6455, 7.4.1: this end refused a message because of its size
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class BadAction(Exception):
    """The agent's text is no action; the message tells the agent why."""


class OpenEnv(Environment):
    """Plays the server at `url` ("ws://", "wss://", "http://" or "https://", host and port).

    max_steps: the episode is truncated there. open_s, answer_s: in seconds, the longest waits for a
    connection, for a server that is full, and for its reset; and for the answer to a step.
    """

    url: ClassVar[str] = ""
    action_field: ClassVar[str] = ""
    text_field: ClassVar[str] = ""
    max_steps: ClassVar[int] = 256
    open_s: ClassVar[float] = 20.0
    answer_s: ClassVar[float] = 60.0

    _link: _Link | None = None

    async def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """Passes the task's keys to the server's own `reset`, with the seed."""
        if "seed" in task:
            raise ValueError("task key 'seed' cannot be set: it is the episode's")
        self._steps = self._invalid = 0
        self._return = 0.0
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.open_s
        while True:
            self._link = await _Link.opened(_address(self.url), self.open_s)
            try:
                first = _outcome(await self._link.ask("reset", {"seed": seed, **task}, self.open_s))
                break
            except _Refused as refused:
                if refused.code != "CAPACITY_REACHED":
                    raise EnvironmentFailure(f"reset: {refused}") from refused
                await self._link.close()
                if loop.time() + _RETRY_S >= ends:
                    remedy = "raise its max_concurrent_envs, or lower this host's capacity"
                    text = f"{self.url} had no session free for {self.open_s:g} s: {refused}"
                    raise EnvBackendLost(text, remedy) from refused
                await asyncio.sleep(_RETRY_S)
        if first.done:
            raise EnvironmentFailure(f"{self.url} says that the episode is over at its reset")
        return self.shown(first.observation)

    async def step(self, action: str) -> StepResult:
        """Takes one action of the agent."""
        assert self._link is not None
        self._steps += 1
        try:
            payload = self.action_of(action)
            answered = _outcome(await self._link.ask("step", payload, self.answer_s))
        except BadAction as bad:
            return self._refused(str(bad))
        except _Refused as refused:
            if refused.code != "VALIDATION_ERROR":
                raise EnvironmentFailure(f"step: {refused}") from refused
            return self._refused(str(refused))
        self._return += answered.reward
        truncated = not answered.done and self._steps >= self.max_steps
        shown = self.shown(answered.observation)
        return self._result(shown, answered.reward, answered.done, truncated)

    async def close(self) -> None:
        """Lets the server free the session."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def action_of(self, text: str) -> dict[str, Any]:
        """Returns the server's action for the agent's text. Raises BadAction."""
        if self.action_field:
            return {self.action_field: text.strip()}
        start, end = text.find("{"), text.rfind("}")
        if start < 0 or end < start:
            raise BadAction("no JSON object in it")
        try:
            fields = json.loads(text[start : end + 1], parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise BadAction(f"not JSON: {error}") from None
        return fields

    def shown(self, observation: dict[str, Any]) -> Observation:
        """Returns the agent's view of the server's observation: its text_field, or all but its metadata."""
        if not self.text_field:
            fields = {key: value for key, value in observation.items() if key != "metadata"}
            return Observation(json.dumps(fields, sort_keys=True, ensure_ascii=False))
        if self.text_field not in observation:
            text = f"the observation has no {self.text_field!r}; it has {', '.join(sorted(observation))}"
            raise EnvProtocolError(text, "correct text_field")
        return Observation(str(observation[self.text_field]))

    def _refused(self, reason: str) -> StepResult:
        self._invalid += 1
        shown = Observation(f"That is no action: {reason[:_MAX_REASON]}")
        return self._result(shown, 0.0, False, self._steps >= self.max_steps)

    def _result(self, shown: Observation, reward: float, done: bool, truncated: bool) -> StepResult:
        metrics: dict[str, float] = {}
        if done or truncated:
            metrics = {"steps": self._steps, "invalid": self._invalid, "return": self._return}
        return StepResult(shown, reward, done, truncated, metrics)


class _Refused(Exception):
    """The server answered with an error message."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


class _Link:
    """One connection to a server, on which one request is in progress at a time."""

    def __init__(self, url: str, connection: ClientConnection) -> None:
        self._url = url
        self._connection = connection
        self._answers = 0
        # Done once the server has taken note of the last ping; None if it could not be sent.
        self._pong: asyncio.Future[float] | None = None

    @classmethod
    async def opened(cls, url: str, within_s: float) -> _Link:
        """A connection, within so many seconds. Raises EnvBackendLost."""
        try:
            connection = await connect(
                url,
                open_timeout=within_s,
                close_timeout=CLOSE_S,
                max_size=MAX_MESSAGE_BYTES,
                # The size of a message that is too large is then known without reading it.
                compression=None,
                proxy=None,
            )
        except (OSError, TimeoutError, WebSocketException) as error:
            text = f"no OpenEnv server at {url}: {error or type(error).__name__}"
            raise EnvBackendLost(text, "start it, or correct the url") from error
        return cls(url, connection)

    async def ask(self, kind: str, data: dict[str, Any], within_s: float) -> dict[str, Any]:
        """The `data` of the answer. Raises _Refused, EnvBackendLost, EnvProtocolError."""
        try:
            async with asyncio.timeout(within_s):
                if self._answers == 0:
                    await self._ping()
                unasked = await self._unasked()
                if unasked is not None:
                    raise self._fault(kind, unasked)
                try:
                    await self._connection.send(json.dumps({"type": kind, "data": data}))
                except WebSocketException:
                    pass  # `recv` says why
                reply = await self._connection.recv()
                self._answers += 1
                await self._ping()
        except TimeoutError:
            text = f"{self._url} did not answer a {kind} within {within_s:g} s"
            raise EnvBackendLost(text, "see what its environment does") from None
        except (OSError, WebSocketException) as error:
            raise self._lost(kind, error) from error
        return self._read(kind, reply)

    async def _ping(self) -> None:
        """Asks the server for a pong, behind which lies nothing that it has sent so far."""
        try:
            self._pong = asyncio.ensure_future(await self._connection.ping())
        except ConnectionClosed:
            self._pong = None  # after its last answer a server may close

    async def _unasked(self) -> str | bytes | None:
        """Returns a message that arrived before the pong; None if the server was silent, or has closed."""
        message = asyncio.ensure_future(self._connection.recv())
        try:
            if self._pong is not None:
                await asyncio.wait({message, self._pong}, return_when=asyncio.FIRST_COMPLETED)
            if not message.done():  # what has arrived can be received without waiting for it
                await asyncio.sleep(0)
        finally:
            message.cancel()
            await asyncio.wait({message})
        return None if message.cancelled() or message.exception() is not None else message.result()

    def _fault(self, kind: str, unasked: str | bytes) -> EnvProtocolError:
        """The error of a message that nobody asked for. Raises _Refused if it is a full server's refusal."""
        if self._answers == 0:  # such a server says so at once, and closes
            self._read(kind, unasked)
        text = f"{self._url} sent a message that nobody asked for, before a {kind}: {unasked[:80]!r}"
        return EnvProtocolError(text, "have its environment answer each request once")

    def _lost(self, kind: str, error: Exception) -> EnvironmentFailure:
        """The error of a connection that ended: the environment's if it sent too much at once."""
        if isinstance(error, ConnectionClosed) and error.sent is not None and error.sent.code == _TOO_LARGE:
            text = f"{self._url} answered a {kind} with a message that is too large: {error.sent.reason}"
            return EnvProtocolError(text, "bound the observations of its environment")
        return EnvBackendLost(f"{self._url} was lost in a {kind}: {error}")

    def _read(self, kind: str, reply: str | bytes) -> dict[str, Any]:
        try:
            message = json.loads(reply)
            about, data = message["type"], message["data"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise EnvProtocolError(f"{self._url} answered a {kind} with {reply[:80]!r}: {error!r}") from error
        if not isinstance(data, dict):
            raise EnvProtocolError(f"{self._url} answered a {kind} with data {reply[:80]!r}")
        if about == "error":
            raise _Refused(str(data.get("code")), _explained(data))
        if about != "observation":
            raise EnvProtocolError(f"{self._url} answered a {kind} with a message of type {about!r}")
        return data

    async def close(self) -> None:
        """Ends the server's session, within a bounded time."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._connection.send(json.dumps({"type": "close"}))
        except (OSError, TimeoutError, WebSocketException):
            pass  # it is gone already
        await self._connection.close()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """An answer's observation, reward (finite) and whether it ends the episode."""

    observation: dict[str, Any]
    reward: float
    done: bool


def _outcome(data: dict[str, Any]) -> _Outcome:
    observation, reward, done = data.get("observation"), data.get("reward"), data.get("done", False)
    if not isinstance(observation, dict):
        raise EnvProtocolError(f"an observation is {type(observation).__name__}, not an object")
    if reward is None and not done:
        reward = 0.0
    if not isinstance(reward, (bool, int, float)) or not math.isfinite(reward):
        raise EnvProtocolError(f"reward {reward!r} is not a finite number")
    if not isinstance(done, bool):
        raise EnvProtocolError(f"done is {done!r}, neither true nor false")
    return _Outcome(observation, float(reward), done)


def _explained(data: dict[str, Any]) -> str:
    """The server's words, with the first field that its validation names."""
    text = str(data.get("message", "no message"))
    errors = data.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        where = errors[0].get("loc")
        path = ".".join(map(str, where)) if isinstance(where, list) else ""
        text = f"{text}: {path}: {errors[0].get('msg')}"
    return text


def _address(url: str) -> str:
    """The WebSocket of a server's url. Raises ConfigError."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES or not rest:
        raise ConfigError(f"OpenEnv url {url!r} names no server", 'give for example "ws://127.0.0.1:8000"')
    return f"{_SCHEMES[scheme]}://{rest.rstrip('/')}/ws"


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")
