"""An env host's side of one stream to a gateway, from Hello to its end, whichever of them dialled.

    Hello ─► Welcome ─► Reset/Step/Close/Cancel/Ping ─► Result/Progress/Pong …   until the stream ends
    stop set ─► Drain ─► episodes end, within drain_s ─► all said ─► the stream is ended

The sessions are the Runner's and outlive the stream: the next Welcome says which the gateway still
holds, and what was in flight is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from earl.env import codec
from earl.env.frames import Frames
from earl.env.runner import SessionRunner
from earl.env.tool_calls import MAX_CHARACTERS
from earl.errors import DeadlineExceeded, EarlError, EnvProtocolError, ServiceUnavailable
from earl.rpc.outbox import Outbox
from earl.v1 import env_pb2
from earl.waiting import deadline

log = logging.getLogger(__name__)

WELCOME_S = 10.0
REMEDY = "see the gateway's log"
LAST_WORDS_S = 2.0


class HostStream:
    """One stream. frames: our end of it. peer: the gateway, for messages. `outbox` takes what the
    sessions say; `last_seen_s` is the loop's time of the last frame, 0 before Welcome."""

    def __init__(self, frames: Frames, peer: str, runner: SessionRunner) -> None:
        self.outbox = Outbox()
        self.last_seen_s = 0.0
        self._frames = frames
        self._peer = peer
        self._runner = runner

    async def serve(
        self,
        hello: env_pb2.Hello,
        stop: asyncio.Event,
        *,
        drain_s: float,
        done_writing: Callable[[], Awaitable[None]] | None = None,
        ready: Callable[[], None] | None = None,
    ) -> EarlError | None:
        """Serves sessions; returns why the stream ended, None if because of `stop`.

        done_writing: ends our side of the stream before its reader ends; without it the caller ends
        the stream when this returns. Raises what reading and writing raise, EnvProtocolError,
        DeadlineExceeded without a Welcome.
        """
        await self._frames.write([env_pb2.HostMessage(hello=hello)])
        lease_s = await self._welcomed()
        log.info("attached to %s", self._peer, extra={"fields": {"epoch": hello.epoch}})
        if ready is not None:
            ready()
        stopping = asyncio.create_task(stop.wait())
        reader = asyncio.create_task(self._read(lease_s))
        writer = asyncio.create_task(self._frames.send(self.outbox))
        failing = asyncio.create_task(self.outbox.failed())
        tasks = (stopping, reader, writer, failing)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
                await self._drain(reader, writer, drain_s, done_writing)
                return None
            if failing not in done:  # the reader knows best why the stream ended
                await asyncio.wait({reader}, timeout=LAST_WORDS_S)
            for task in (failing, reader, writer):
                if task.done():
                    task.result()
            return ServiceUnavailable(f"{self._peer} ended the stream", REMEDY)
        finally:
            self.outbox.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in (failing, reader, writer):
                if not task.cancelled():
                    task.exception()  # the first one was reported; the others follow from it

    async def _welcomed(self) -> float:
        """Waits for Welcome; returns the lease in seconds."""
        late = DeadlineExceeded(f"no Welcome from {self._peer} within {WELCOME_S:g} s", REMEDY)
        async with deadline(WELCOME_S, late):
            messages = await self._frames.read()
        if messages is None:
            raise ServiceUnavailable(f"{self._peer} ended the stream before Welcome", REMEDY)
        if not messages or messages[0].WhichOneof("message") != "welcome":
            raise EnvProtocolError(f"first answer of {self._peer} is not Welcome", "is it an EARL gateway?")
        welcome = messages[0].welcome
        if welcome.protocol != codec.PROTOCOL:
            raise EnvProtocolError(f"gateway speaks protocol {welcome.protocol}, this host {codec.PROTOCOL}")
        self._note_message()
        self._runner.max_text_bytes = welcome.max_text_bytes
        # An older gateway does not say.
        self._runner.max_action_characters = welcome.max_action_characters or MAX_CHARACTERS
        self._runner.keep(set(welcome.sessions))
        for message in messages[1:]:
            self._handle(message)
        return welcome.lease_s

    def _note_message(self) -> None:
        self.last_seen_s = asyncio.get_running_loop().time()

    async def _read(self, lease_s: float) -> None:
        """Handles messages until the stream ends. A gateway that no longer pings counts as gone."""
        bound_s = max(3 * lease_s, 1.0)
        try:
            async with asyncio.timeout(bound_s) as timeout:
                while (messages := await self._frames.read()) is not None:
                    self._note_message()
                    timeout.reschedule(self.last_seen_s + bound_s)
                    for message in messages:
                        self._handle(message)
        except TimeoutError:
            raise ServiceUnavailable(f"{self._peer} sent nothing for {bound_s:g} s", REMEDY) from None

    def _handle(self, message: Any) -> None:
        runner = self._runner
        kind = message.WhichOneof("message")
        if kind == "step":
            runner.step(message.step)
        elif kind == "reset":
            runner.reset(message.reset)
        elif kind == "close":
            runner.drop(message.close.session)
        elif kind == "cancel":
            runner.drop(message.cancel.session)
        elif kind == "ping":
            pong = env_pb2.Pong(nonce=message.ping.nonce)
            self.outbox.put(env_pb2.HostMessage(pong=pong))
        elif kind == "drain":
            log.info("the gateway drains: %s", message.drain.reason)

    async def _drain(
        self,
        reader: asyncio.Task[None],
        writer: asyncio.Task[None],
        drain_s: float,
        done_writing: Callable[[], Awaitable[None]] | None,
    ) -> None:
        log.info("draining %d episodes", self._runner.open_sessions)
        drain = env_pb2.Drain(grace_s=drain_s, reason="the host stops")
        self.outbox.put(env_pb2.HostMessage(drain=drain))
        emptied = asyncio.create_task(self._runner.wait_empty())
        await asyncio.wait({emptied, reader, writer}, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
        emptied.cancel()
        self.outbox.close()
        await asyncio.wait({writer}, timeout=LAST_WORDS_S)
        if done_writing is not None and writer.done() and not reader.done():
            await done_writing()
            await asyncio.wait({reader}, timeout=LAST_WORDS_S)
