"""The loop of rank 0 between the service's socket and its engine.

    wait for commands and for what the engine waits for (not at all while there is work)
      ─► handle ─► step ─► send replies, one frame a turn at most ─► …

An idle engine waits in select and uses no CPU. The loop ends with Stop or when a socket closes.
"""

from __future__ import annotations

import enum
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from earl.errors import EarlError
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.local_engine import LocalEngine


class Later(enum.Enum):
    """The result of a call that is answered when its work has ended."""

    LATER = enum.auto()


class CommandLoop(ABC):
    """Serves the service's commands with one engine, of which a subclass knows how it starts and steps."""

    _engine: LocalEngine

    def __init__(self, service: wire.EngineChannel) -> None:
        self._service = service
        self._stopped = False

    def run(self, start: wire.Start, commands: list[wire.Command]) -> None:
        """Start, then serve until Stop or until a socket closes."""
        try:
            ready = self._start(start)
        except EarlError as error:
            self._send([wire.CallAnswer.of(0, error)])
            return
        self._send([ready])
        try:
            self._handle(commands)
            while not self._stopped:
                self._turn()
        finally:
            self._close()

    @abstractmethod
    def _start(self, start: wire.Start) -> wire.Ready:
        """Builds the engine. Raises EarlError, why it does not start."""

    @abstractmethod
    def _turn(self) -> None:
        """Waits for work and does it."""

    @abstractmethod
    def _close(self) -> None:
        """Stops what the process would otherwise wait for; it ends next."""

    @abstractmethod
    def _begin(self, command: wire.EngineCall) -> wire.CallResult | Later:
        """Carries a call out that engines carry out differently, or begins to. Raises EarlError."""

    def _take_commands(self, readable: Collection[object]) -> None:
        """Handles what the service sent. readable: what select returned."""
        if self._service in readable:
            for body in self._service.receive():
                self._handle(wire.command_decoder.decode(body))

    def _send_replies(self) -> None:
        if self._engine.outbox:
            replies, self._engine.outbox = self._engine.outbox, []
            self._send(replies)

    def _send(self, replies: list[wire.Reply]) -> None:
        self._service.send(wire.encoder.encode(replies))

    def _handle(self, commands: list[wire.Command]) -> None:
        for command in commands:
            match command:
                case wire.Generate(request, stream):
                    self._engine.submit(request, stream)
                case wire.Abort(request_id):
                    self._engine.abort(request_id)
                case wire.Release(session):
                    self._engine.release(session)
                case wire.Stop():
                    self._stopped = True
                case wire.EngineCall():
                    self._answer(command.call, functools.partial(self._call, command))
                case wire.Start():
                    raise wire.ChannelClosed("Start came a second time")

    def _call(self, command: wire.EngineCall) -> wire.CallResult | Later:
        match command:
            case wire.Pause(_, keep):
                return self._engine.pause(keep)
            case wire.Resume():
                return self._engine.resume()
            case wire.Commit(_, version):
                return self._engine.commit(version)
            case wire.GetStats():
                return self._engine.stats()
            case wire.Sleep():
                return self._engine.sleep()
            case wire.Wake():
                return self._engine.wake()
        return self._begin(command)

    def _answer(self, call: int, work: Callable[[], wire.CallResult | Later]) -> None:
        """Answers a call with what `work` returns or raises, unless that is for later."""
        try:
            outcome = work()
        except EarlError as error:
            outcome = error
        if not isinstance(outcome, Later):
            self._engine.outbox.append(wire.CallAnswer.of(call, outcome))
