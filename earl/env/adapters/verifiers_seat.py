"""One episode's seat: verifiers asks a model, and the model's turn is the agent's next action.

    an episode of verifiers ─► POST /v1/chat/completions ─► VerifiersSeat.next_call ─► the observation
                            ◄── the assistant's message  ◄── Seat.say ◄── the action
                                (verifiers_model.py)                       (verifiers.py)

A session of EARL is one context that grows, so a seat refuses, with EnvProtocolError, what is none: a second
agent's calls, two calls at a time, a context that was rewritten, anything but text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from earl.errors import EnvProtocolError

# A message as far as the agent's context is concerned: role, text, (name, arguments) of its calls.
_Shape = tuple[str, str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Ask:
    """A model call: the messages that are new to the agent, {"role", "text"}, and the tools' schemas."""

    messages: list[dict[str, str]]
    tools: list[dict[str, Any]]


class VerifiersSeat:
    """The model of one episode. model: the name by which it is called."""

    def __init__(self, model: str) -> None:
        self.model = model
        # Why the seat refused a call: what the episode fails with after it only follows from this.
        self.refusal: EnvProtocolError | None = None
        self._calls: asyncio.Queue[Ask] = asyncio.Queue()
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._session = ""
        self._context: list[_Shape] = []

    async def next_call(self) -> Ask:
        """The next model call."""
        return await self._calls.get()

    def say(self, message: dict[str, Any]) -> None:
        """Answers the model call with the assistant's message, {"content", "tool_calls"}.

        Nobody receives it if verifiers gave the call up, by a timeout of its own: its episode has ended then.
        """
        if self._answer is None:
            return
        self._context.append(_shape({"role": "assistant", **message}))
        self._answer.set_result(message)

    async def complete(self, body: Mapping[str, Any], session: str) -> dict[str, Any]:
        """A call of the model, for the server; returns the assistant's message. Raises EnvProtocolError."""
        try:
            ask = self._admitted(body, session)
        except EnvProtocolError as refusal:
            self.refusal = refusal
            raise
        self._answer = asyncio.get_running_loop().create_future()
        self._calls.put_nowait(ask)
        try:
            return await self._answer
        finally:
            self._answer = None

    def _admitted(self, body: Mapping[str, Any], session: str) -> Ask:
        if body.get("stream"):
            raise EnvProtocolError("the harness asks for a stream", "use one that does not, for example null")
        if self._answer is not None:
            raise EnvProtocolError("the episode calls its model twice at a time")
        if self._session and session != self._session:
            raise EnvProtocolError(
                "a second agent of the episode calls the model that is trained",
                "pin another model and client for all roles but one",
            )
        self._session = session
        shapes = [_shape(message) for message in body.get("messages") or []]
        known = len(self._context)
        if shapes[:known] != self._context or len(shapes) == known:
            raise EnvProtocolError("the episode rewrote its context", "use a harness that only appends to it")
        self._context = shapes
        new = [{"role": role, "text": text} for role, text, _ in shapes[known:]]
        return Ask(new, body.get("tools") or [])


def _shape(message: Mapping[str, Any]) -> _Shape:
    calls = tuple(
        (str(call["function"]["name"]), str(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    )
    return str(message["role"]), _text(message.get("content")), calls


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    kinds = {part.get("type") for part in content}
    if kinds - {"text"}:
        raise EnvProtocolError(
            f"a message has a part of type {(kinds - {'text'}).pop()!r}", "only text is taken"
        )
    return "".join(part["text"] for part in content)
