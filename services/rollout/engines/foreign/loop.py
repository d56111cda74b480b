"""The loop of an engine that another project wrote (see command_loop.py). The torch engine's own is
engines/torch/leader.py, which serves follower ranks too."""

from __future__ import annotations

import select
from collections.abc import Callable

from services.rollout.engines.contract import wire
from services.rollout.engines.contract.command_loop import CommandLoop, Later
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.foreign.engine import ForeignEngine


class EngineLoop(CommandLoop):
    """Rank 0's loop. make: builds the engine; an EarlError that it raises is why the start failed."""

    _engine: ForeignEngine

    def __init__(self, service: wire.EngineChannel, make: Callable[[EngineSpec], ForeignEngine]) -> None:
        super().__init__(service)
        self._make = make

    def _start(self, start: wire.Start) -> wire.Ready:
        self._engine = self._make(start.spec)
        return wire.Ready(self._engine.caps, self._engine.workers)

    def _close(self) -> None:
        self._engine.close()

    def _turn(self) -> None:
        engine = self._engine
        sources, timeout_s = engine.sources()
        wait_s = 0 if engine.has_work else timeout_s
        readable, _, _ = select.select([self._service, *sources], [], [], wait_s)
        if timeout_s is not None or any(source in readable for source in sources):
            engine.collect()
        self._take_commands(readable)
        if engine.has_work:
            engine.step()
        self._send_replies()

    def _begin(self, command: wire.EngineCall) -> wire.CallResult | Later:
        match command:
            case wire.BeginUpdate():
                return self._engine.drop()
            case wire.LoadWeights(call, version, keys, deadline_s):
                self._engine.load(call, version, keys, deadline_s)
                return Later.LATER
        raise wire.ChannelClosed(f"{type(command).__name__} is not for this engine")
