"""The torch engine's loop on rank 0 (see command_loop.py), which serves its followers too."""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable

from earl.errors import EarlError, EngineError, ReshapeRefused
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.command_loop import CommandLoop, Later
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
    OfferRows,
    TakeRows,
    WithdrawRows,
    report_decoder,
)

PartsAnswer = Callable[[list[ShardReport]], wire.CallResult]
# How soon an engine that could not step tries again, if no message comes before.
RETRY_STEP_S = 0.001


class Leader(CommandLoop):
    """Serves the service's commands with a TorchEngine and its followers."""

    _engine: TorchEngine

    def __init__(self, service: wire.EngineChannel, followers: list[wire.EngineChannel]) -> None:
        super().__init__(service)
        self._channels = followers
        # The reports of a call's parts until every rank's has come, and what makes the answer of them.
        self._parts: dict[int, tuple[list[ShardReport], PartsAnswer]] = {}
        # The registry key under which ranks publish each offer.
        self._offers: dict[str, str] = {}
        # The last turn made a step, or there was none to make.
        self._stepped = True

    def _start(self, start: wire.Start) -> wire.Ready:
        for number, channel in enumerate(self._channels, start=1):
            order = wire.Start(start.spec, number, start.store)
            channel.send(wire.encoder.encode([order]))
        self._spec, self._rank = start.spec, EngineRank(start)
        self._followers = Followers(self._channels)
        self._followers.await_applied()
        self._engine = TorchEngine(start.spec, self._rank, self._followers)
        return wire.Ready(self._engine.caps)

    def _close(self) -> None:
        self._rank.data.close()

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
        self._take_commands(readable)
        self._stepped = not self._engine.has_work or self._engine.step()
        for rank, report in self._engine.reports:
            self._note_report(rank, report)
        self._engine.reports.clear()
        self._send_replies()

    def _begin(self, command: wire.EngineCall) -> wire.CallResult | Later:
        match command:
            case wire.BeginUpdate():
                self._rank.stager.drop()
                return self._followers.send(DropShard())
            case wire.LoadWeights(call, version, keys, deadline_s):
                self._followers.send(command)
                self._rank.stager.begin(call, version, keys, deadline_s)
                return self._await_parts(call, whole_load)
            case wire.OfferKv():
                self._refuse_asleep()
                return self._offer_kv(command)
            case wire.TakeKv():
                return self._take_kv(command)
            case wire.WithdrawKv(call, name) if name in self._offers:
                self._withdraw(call, name)
                return self._await_parts(call, refuse_failed)
        return None

    def _refuse_asleep(self) -> None:
        if self._engine.asleep:
            raise ReshapeRefused(f"engine {self._spec.name} sleeps: it has no KV", "wake it first")

    # --- calls on all ranks --------------------------------------------------------------------

    def _receive(self, rank: int, channel: wire.EngineChannel) -> None:
        for body in channel.receive():
            report = report_decoder.decode(body)
            if isinstance(report, ShardReport):
                self._note_report(rank, report)

    def _await_parts(self, call: int, answer: PartsAnswer) -> Later:
        """answer: makes the call's result of the reports once every rank's has come; may raise EarlError."""
        self._parts[call] = [], answer
        return Later.LATER

    def _note_report(self, rank: int, report: ShardReport) -> None:
        self._engine.transfers[rank] = report.transfers
        if report.call not in self._parts:
            return  # nobody waits for it
        reports, answer = self._parts[report.call]
        reports.append(report)
        if len(reports) > len(self._channels):
            del self._parts[report.call]
            self._answer(report.call, lambda: answer(reports))

    # --- KV for other engines -----------------------------------------------------------------

    def _offer_kv(self, command: wire.OfferKv) -> KvOffer | Later:
        call, name, deadline_s = command.call, command.name, command.deadline_s
        if name in self._offers:
            raise EngineError(f"engine {self._spec.name} already offers {name}", "withdraw it first")
        moving = self._engine.handover.offer(command.known, self._engine.version)
        key = f"kv/{name}/{self._spec.name}/{secrets.token_hex(4)}"

        def answer(reports: list[ShardReport]) -> KvOffer:
            try:
                refuse_failed(reports)
            except EarlError:
                if name in self._offers:
                    self._withdraw(0, name)
                raise
            return self._offer(name, keys, moving, reports)

        if not moving.rows:
            return self._offer(name, [], moving, [])
        self._offers[name] = key
        keys = [f"{key}/{rank}" for rank in range(len(self._channels) + 1)]
        self._followers.send(OfferRows(call, key, moving.rows, moving.version, deadline_s))
        self._rank.kv.offer(call, keys[0], moving.rows, moving.version, deadline_s)
        return self._await_parts(call, answer)

    def _offer(self, name: str, keys: list[str], moving: KvInTransit, reports: list[ShardReport]) -> KvOffer:
        return KvOffer(
            name=name,
            keys=keys,
            version=moving.version,
            sessions=self._engine.handover.offered(moving),
            size_bytes=whole_kv_bytes(reports),
        )

    def _take_kv(self, command: wire.TakeKv) -> KvReport | Later:
        clock, offer = time.perf_counter(), command.offer
        moving = self._engine.begin_take(offer)

        def answer(reports: list[ShardReport]) -> KvReport:
            try:
                refuse_failed(reports)
            except EarlError:
                self._engine.handover.fail(moving)
                raise
            kept = self._engine.handover.taken(moving, self._engine.version)
            names = {session.session for session in kept}
            return KvReport(
                sessions=len(kept),
                tokens=sum(len(session.ids) for session in kept),
                size_bytes=whole_kv_bytes(reports),
                seconds=time.perf_counter() - clock,
                left_out=[session.session for session in offer.sessions if session.session not in names],
            )

        if not moving.rows:
            return answer([])
        moves = self._engine.take_moves()
        order = TakeRows(command.call, offer.keys, moving.rows, moves, command.deadline_s)
        self._followers.send(order)
        self._rank.take_kv(order)
        return self._await_parts(command.call, answer)

    def _withdraw(self, call: int, name: str) -> None:
        key = self._offers.pop(name)
        self._followers.send(WithdrawRows(call, key))
        self._rank.kv.withdraw(call, f"{key}/0")
