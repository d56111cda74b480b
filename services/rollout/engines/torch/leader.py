"""The torch engine's loop on rank 0, between the service's socket, the followers' and the engine.

    wait for commands, loads and hand-overs that ended, followers (not at all while there is work)
      ─► handle ─► step ─► send replies, one frame a turn at most ─► …

An idle engine waits in select and uses no CPU. The loop ends with Stop or when a socket closes.
"""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable, Mapping

from earl.errors import EarlError, EngineError
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.engine import KvOffer, KvReport
from services.rollout.engines.contract.shard_report import (
    ShardReport,
    refuse_failed,
    whole_kv_bytes,
    whole_load,
)
from services.rollout.engines.torch.engine import TorchEngine
from services.rollout.engines.torch.kv_handover import KvInTransit
from services.rollout.engines.torch.ranks import (
    DropShard,
    EngineRank,
    Followers,
    LoadShard,
    OfferRows,
    TakeRows,
    WithdrawRows,
    report_decoder,
)

# How soon an engine that could not step tries again, if no message comes before.
RETRY_STEP_S = 0.001


class Leader:
    """Serves the service's commands with a TorchEngine and its followers."""

    def __init__(self, service: wire.EngineChannel, followers: list[wire.EngineChannel]) -> None:
        self._service, self._channels = service, followers
        # The reports of a call's parts until every rank's has come, and what makes the answer of them.
        self._parts: dict[int, tuple[list[ShardReport], Callable[[list[ShardReport]], wire.CallAnswer]]] = {}
        # The registry key under which ranks publish each offer.
        self._offers: dict[str, str] = {}
        self._stopped = False
        # The last turn made a step, or there was none to make.
        self._stepped = True

    def run(self, start: wire.Start, commands: list[wire.Command]) -> None:
        """Start, then serve until Stop or until a socket closes."""
        try:
            self._start(start)
        except EarlError as error:
            self._service.send(wire.encoder.encode([wire.CallAnswer(0, wire.WireError.of(error))]))
            return
        self._service.send(wire.encoder.encode([wire.Ready(self._engine.caps)]))
        try:
            self._handle(commands)
            while not self._stopped:
                self._turn()
        finally:
            self._rank.data.close()

    def _start(self, start: wire.Start) -> None:
        for number, channel in enumerate(self._channels, start=1):
            order = wire.Start(start.spec, number, start.epoch, start.store, start.sums)
            channel.send(wire.encoder.encode([order]))
        self._spec, self._rank = start.spec, EngineRank(start)
        self._followers = Followers(self._channels)
        self._followers.await_applied()
        self._engine = TorchEngine(start.spec, self._rank, self._followers)

    def _turn(self) -> None:
        sources = [self._service, self._rank.data.wake, *self._channels]
        pause_s = 0.0 if self._stepped else RETRY_STEP_S
        readable, _, _ = select.select(sources, [], [], pause_s if self._engine.has_work else None)
        if self._rank.data.wake in readable:
            for call, outcome in self._rank.data.take():
                self._note_report(0, ShardReport.of(call, outcome, self._rank.data.transfers))
        for rank, channel in enumerate(self._channels, start=1):
            if channel in readable:
                self._receive(rank, channel)
        if self._service in readable:
            for body in self._service.receive():
                self._handle(wire.command_decoder.decode(body))
        self._stepped = not self._engine.has_work or self._engine.step()
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
                answer(wire.CallAnswer(call))
            case wire.Resume(call):
                self._engine.resume()
                answer(wire.CallAnswer(call))
            case wire.BeginUpdate(call, _):
                self._drop()
                answer(wire.CallAnswer(call))
            case wire.LoadWeights(call, version, keys, deadline_s):
                self._load(call, version, keys, deadline_s)
            case wire.Commit(call, version):
                self._commit(call, version)
            case wire.GetStats(call):
                answer(wire.CallAnswer(call, stats=self._engine.stats()))
            case wire.OfferKv(call, name, known, deadline_s):
                self._try(call, lambda: self._offer_kv(call, name, known, deadline_s))
            case wire.TakeKv(call, offer, deadline_s):
                self._try(call, lambda: self._take_kv(call, offer, deadline_s))
            case wire.WithdrawKv(call, name):
                self._withdraw_kv(call, name)

    def _try(self, call: int, begin: Callable[[], None]) -> None:
        """Begins a call, or answers it with the error."""
        try:
            begin()
        except EarlError as error:
            self._engine.outbox.append(wire.CallAnswer(call, wire.WireError.of(error)))

    # --- calls on all ranks --------------------------------------------------------------------

    def _receive(self, rank: int, channel: wire.EngineChannel) -> None:
        for body in channel.receive():
            report = report_decoder.decode(body)
            if isinstance(report, ShardReport):
                self._note_report(rank, report)

    def _await_parts(self, call: int, answer: Callable[[list[ShardReport]], wire.CallAnswer]) -> None:
        """answer: makes the call's answer of the reports once every rank's has come; may raise EarlError."""
        self._parts[call] = [], answer

    def _note_report(self, rank: int, report: ShardReport) -> None:
        self._engine.transfers[rank] = report.transfers
        if report.call not in self._parts:
            return  # nobody waits for it
        reports, answer = self._parts[report.call]
        reports.append(report)
        if len(reports) > len(self._channels):
            del self._parts[report.call]
            self._try(report.call, lambda: self._engine.outbox.append(answer(reports)))

    # --- weights ------------------------------------------------------------------------------

    def _drop(self) -> None:
        self._rank.stager.drop()
        self._followers.send(DropShard())

    def _load(self, call: int, version: int, keys: list[str], deadline_s: float) -> None:
        def answer(reports: list[ShardReport]) -> wire.CallAnswer:
            return wire.CallAnswer(call, load=whole_load(reports))

        self._await_parts(call, answer)
        self._followers.send(LoadShard(call, version, keys, deadline_s))
        self._rank.stager.begin(call, version, keys, deadline_s)

    def _commit(self, call: int, version: int) -> None:
        try:
            report, others = self._engine.commit(version)
        except EarlError as error:
            self._engine.outbox.append(wire.CallAnswer(call, wire.WireError.of(error)))
            return
        for rank, other in others:
            self._note_report(rank, other)
        self._engine.outbox.append(wire.CallAnswer(call, load=report))

    # --- KV for other engines -----------------------------------------------------------------

    def _offer_kv(self, call: int, name: str, known: Mapping[str, int], deadline_s: float) -> None:
        if name in self._offers:
            raise EngineError(f"engine {self._spec.name} already offers {name}", "withdraw it first")
        moving = self._engine.handover.offer(known, self._engine.version)
        key = f"kv/{name}/{self._spec.name}/{secrets.token_hex(4)}"

        def answer(reports: list[ShardReport]) -> wire.CallAnswer:
            try:
                refuse_failed(reports)
            except EarlError:
                if name in self._offers:
                    self._withdraw(0, name)
                raise
            return wire.CallAnswer(call, offer=self._offer(name, keys, moving, reports))

        if not moving.rows:
            self._engine.outbox.append(wire.CallAnswer(call, offer=self._offer(name, [], moving, [])))
            return
        self._offers[name] = key
        keys = [f"{key}/{rank}" for rank in range(len(self._channels) + 1)]
        self._await_parts(call, answer)
        self._followers.send(OfferRows(call, key, moving.rows, moving.version, deadline_s))
        self._rank.kv.offer(call, keys[0], moving.rows, moving.version, deadline_s)

    def _offer(self, name: str, keys: list[str], moving: KvInTransit, reports: list[ShardReport]) -> KvOffer:
        return KvOffer(
            name=name,
            keys=keys,
            version=moving.version,
            sessions=self._engine.handover.offered(moving),
            size_bytes=whole_kv_bytes(reports),
        )

    def _take_kv(self, call: int, offer: KvOffer, deadline_s: float) -> None:
        clock = time.perf_counter()
        moving = self._engine.begin_take(offer)

        def answer(reports: list[ShardReport]) -> wire.CallAnswer:
            try:
                refuse_failed(reports)
            except EarlError:
                self._engine.handover.fail(moving)
                raise
            kept = self._engine.handover.taken(moving, self._engine.version)
            names = {session.session for session in kept}
            report = KvReport(
                sessions=len(kept),
                tokens=sum(len(session.ids) for session in kept),
                size_bytes=whole_kv_bytes(reports),
                seconds=time.perf_counter() - clock,
                left_out=[session.session for session in offer.sessions if session.session not in names],
            )
            return wire.CallAnswer(call, taken=report)

        if not moving.rows:
            self._engine.outbox.append(answer([]))
            return
        self._await_parts(call, answer)
        order = TakeRows(call, offer.keys, moving.rows, self._engine.take_moves(), deadline_s)
        self._followers.send(order)
        self._rank.take_kv(order)

    def _withdraw_kv(self, call: int, name: str) -> None:
        def answer(reports: list[ShardReport]) -> wire.CallAnswer:
            refuse_failed(reports)
            return wire.CallAnswer(call)

        if name not in self._offers:
            self._engine.outbox.append(wire.CallAnswer(call))
            return
        self._await_parts(call, answer)
        self._withdraw(call, name)

    def _withdraw(self, call: int, name: str) -> None:
        key = self._offers.pop(name)
        self._followers.send(WithdrawRows(call, key))
        self._rank.kv.withdraw(call, f"{key}/0")
