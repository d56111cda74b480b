"""The loop between the service's socket and an engine that another project wrote.

    wait for commands and loads that ended (not at all while there is work)
      ─► handle ─► step ─► send replies, one frame a turn at most ─► …

An idle engine waits in select. The loop ends with Stop or when the socket closes.
The torch engine has a loop of its own (engines/torch/leader.py), which serves follower ranks too.
"""

from __future__ import annotations

import select
from collections.abc import Callable

from earl.errors import EarlError
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.foreign.engine import ForeignEngine


class EngineLoop:
    """Rank 0's loop. make: builds the engine; an EarlError that it raises is why the start failed."""

    def __init__(self, service: wire.EngineChannel, make: Callable[[EngineSpec], ForeignEngine]) -> None:
        self._service, self._make = service, make
        self._stopped = False

    def run(self, start: wire.Start, commands: list[wire.Command]) -> None:
        """Start, then serve until Stop or until the socket closes."""
        try:
            self._engine = self._make(start.spec)
        except EarlError as error:
            self._service.send(wire.encoder.encode([wire.CallAnswer(0, wire.WireError.of(error))]))
            return
        self._service.send(wire.encoder.encode([wire.Ready(self._engine.caps, self._engine.workers)]))
        try:
            self._handle(commands)
            while not self._stopped:
                self._turn()
        finally:
            self._engine.close()

    def _turn(self) -> None:
        engine = self._engine
        sources, timeout_s = engine.sources()
        readable, _, _ = select.select([self._service, *sources], [], [], 0 if engine.has_work else timeout_s)
        if timeout_s is not None or any(source in readable for source in sources):
            engine.collect()
        if self._service in readable:
            for body in self._service.receive():
                self._handle(wire.command_decoder.decode(body))
        if engine.has_work:
            engine.step()
        if engine.outbox:
            replies, engine.outbox = engine.outbox, []
            self._service.send(wire.encoder.encode(replies))

    def _handle(self, commands: list[wire.Command]) -> None:
        for command in commands:
            match command:
                case wire.Generate(request, stream):
                    self._submit(request, stream)
                case wire.Abort(request_id):
                    self._engine.abort(request_id)
                case wire.Release(session):
                    self._engine.release(session)
                case wire.LoadWeights(call, version, keys, deadline_s):
                    self._engine.load(call, version, keys, deadline_s)
                case wire.Stop():
                    self._stopped = True
                case wire.Start() | wire.OfferKv() | wire.TakeKv() | wire.WithdrawKv():
                    raise wire.ChannelClosed(f"{type(command).__name__} is not for this engine")
                case _:
                    self._engine.outbox.append(self._answer(command))

    def _submit(self, request: GenerateRequest, stream: bool) -> None:
        try:
            self._engine.submit(request, stream)
        except EarlError as error:
            self._engine.outbox.append(wire.RequestRefused(request.request_id, wire.WireError.of(error)))

    def _answer(
        self, command: wire.Pause | wire.Resume | wire.BeginUpdate | wire.Commit | wire.GetStats
    ) -> wire.CallAnswer:
        engine, call = self._engine, command.call
        try:
            match command:
                case wire.Pause(_, keep):
                    engine.pause(keep)
                case wire.Resume():
                    engine.resume()
                case wire.BeginUpdate():
                    engine.drop()
                case wire.Commit(_, version):
                    return wire.CallAnswer(call, load=engine.commit(version))
                case wire.GetStats():
                    return wire.CallAnswer(call, stats=engine.stats())
        except EarlError as error:
            return wire.CallAnswer(call, wire.WireError.of(error))
        return wire.CallAnswer(call)
