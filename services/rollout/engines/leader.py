"""Rank 0's loop between the service's socket, the followers' and the engine.

    wait for commands, loads that ended, followers (not at all while there is work)
      ─► handle ─► step ─► send replies, one frame a turn at most ─► …

An idle engine waits in select and uses no CPU. The loop ends with Stop or when a socket closes.
"""

from __future__ import annotations

import select

from earl.errors import EarlError
from services.rollout.engines import wire
from services.rollout.engines.base import LoadReport
from services.rollout.engines.ranks import (
    DropShard,
    Followers,
    Loaded,
    LoadShard,
    Rank,
    loaded,
    report_decoder,
)
from services.rollout.engines.torch_engine import TorchEngine


class Leader:
    """Rank 0's loop."""

    def __init__(self, service: wire.Channel, followers: list[wire.Channel]) -> None:
        self._service, self._channels = service, followers
        # What each rank said about the load of a call, until all have.
        self._loads: dict[int, list[Loaded]] = {}
        self._stopped = False

    def run(self, start: wire.Start, commands: list[wire.Command]) -> None:
        """Start, then serve until Stop or until a socket closes."""
        try:
            self._start(start)
        except EarlError as error:
            self._service.send(wire.encoder.encode([wire.Answer(0, wire.WireError.of(error))]))
            return
        self._service.send(wire.encoder.encode([wire.Ready(self._engine.caps)]))
        try:
            self._handle(commands)
            while not self._stopped:
                self._turn()
        finally:
            self._stager.close()

    def _start(self, start: wire.Start) -> None:
        for number, channel in enumerate(self._channels, start=1):
            order = wire.Start(start.spec, number, start.epoch, start.store)
            channel.send(wire.encoder.encode([order]))
        rank = Rank(start)
        self._followers = Followers(self._channels)
        self._followers.await_applied()
        self._stager = rank.stager
        self._engine = TorchEngine(start.spec, rank, self._followers)

    def _turn(self) -> None:
        sources = [self._service, self._stager.wake, *self._channels]
        readable, _, _ = select.select(sources, [], [], 0 if self._engine.has_work else None)
        if self._stager.wake in readable:
            for call, outcome in self._stager.take():
                self._note_loaded(0, loaded(self._stager, call, outcome))
        for rank, channel in enumerate(self._channels, start=1):
            if channel in readable:
                self._hear(rank, channel)
        if self._service in readable:
            for body in self._service.receive():
                self._handle(wire.command_decoder.decode(body))
        if self._engine.has_work:
            self._engine.step()
        if self._engine.outbox:
            replies, self._engine.outbox = self._engine.outbox, []
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
                case _:
                    self._handle_call(command)

    def _handle_call(self, command: wire.Command) -> None:
        answer = self._engine.outbox.append
        match command:
            case wire.Pause(call, keep):
                self._engine.pause(keep)
                answer(wire.Answer(call))
            case wire.Resume(call):
                self._engine.resume()
                answer(wire.Answer(call))
            case wire.BeginUpdate(call, _):
                self._drop()
                answer(wire.Answer(call))
            case wire.Load(call, version, keys, deadline_s):
                self._load(call, version, keys, deadline_s)
            case wire.Commit(call, version):
                self._commit(call, version)
            case wire.GetStats(call):
                answer(wire.Answer(call, stats=self._engine.stats()))

    # --- weights ------------------------------------------------------------------------------

    def _drop(self) -> None:
        self._stager.drop()
        self._followers.send(DropShard())

    def _load(self, call: int, version: int, keys: list[str], deadline_s: float) -> None:
        self._followers.send(LoadShard(call, version, keys, deadline_s))
        self._stager.begin(call, version, keys, deadline_s)

    def _hear(self, rank: int, channel: wire.Channel) -> None:
        for body in channel.receive():
            report = report_decoder.decode(body)
            if isinstance(report, Loaded):
                self._note_loaded(rank, report)

    def _note_loaded(self, rank: int, report: Loaded) -> None:
        """The call is answered once every rank has said how its load ended: an error wins."""

        self._engine.transfers[rank] = report.transfers
        reports = self._loads.setdefault(report.call, [])
        reports.append(report)
        if len(reports) <= len(self._channels):
            return
        del self._loads[report.call]
        errors = [each.error for each in reports if each.error is not None]
        if errors:
            self._engine.outbox.append(wire.Answer(report.call, errors[0]))
            return
        parts = [each.report for each in reports if each.report is not None]
        total = LoadReport(
            version=parts[0].version,
            size_bytes=sum(part.size_bytes for part in parts),
            read_s=max(part.read_s for part in parts),
        )
        self._engine.outbox.append(wire.Answer(report.call, load=total))

    def _commit(self, call: int, version: int) -> None:
        try:
            report, others = self._engine.commit(version)
        except EarlError as error:
            self._engine.outbox.append(wire.Answer(call, wire.WireError.of(error)))
            return
        for rank, other in others:
            self._note_loaded(rank, other)
        self._engine.outbox.append(wire.Answer(call, load=report))
