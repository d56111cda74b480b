"""The duties of rank 0 of each stage in addition to its share of the work: it speaks for the group.

scheduler ◄─ heartbeats, calls that wait for work ─ I/O thread ◄─ computing thread: polls, requests
operator, scheduler ─► server: status, switches of parallelism ─► the next command of all ranks
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar

from earl.config.scheduler import SwitchConfig
from earl.errors import EarlError
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchCommand, SwitchOutcome, ended_switch
from earl.rpc.access import Access
from earl.rpc.audit import AUDIT_FILE, Audit
from earl.rpc.main import announce
from earl.rpc.metrics_endpoint import MetricsEndpoint
from earl.rpc.options import COMMAND_BYTES
from earl.rpc.peers import advertised_address
from earl.rpc.server import Server
from earl.rpc.token_file import Role
from earl.rpc.tokens import tokens_to_accept
from earl.scheduler_client import RETRY_S, HeartbeatReply, JoinReply, SchedulerClient
from services.trainer.api.metrics import figures
from services.trainer.api.servicer import StageServicer, add_to
from services.trainer.ranks.activity import SWITCHING, Activity
from services.trainer.ranks.codec import command_from_rank0, command_to_ranks
from services.trainer.ranks.switch_requests import SwitchRequests
from services.trainer.reshard.switch import ParallelismChange, log_outcome, switch
from services.trainer.stage.commands import RankCommand
from services.trainer.stage.rank_resources import CLOSE_S, OPEN_S, RankResources

log = logging.getLogger(__name__)

# How soon a request (stop, save, switch) is noticed while the scheduler is asked for work.
NOTICE_S = 0.05
# Added to a call's own deadline where the computing thread waits for it.
SLACK_S = 5.0
FAREWELL_S = 2.0

T = TypeVar("T")
StageName = Literal["trainer", "reference", "teacher", "reward_model"]


class StageRank0:
    """Rank 0's server, its membership in the run, its calls that wait for work, and its switch requests.

    Methods are called from the computing thread. switches: of the stage's parallelism, requested of this
    rank.
    """

    def __init__(self, resources: RankResources, stage: StageName, switches: SwitchRequests) -> None:
        """Connects to the scheduler; `serve` joins. Raises ConfigError."""
        self._resources, self._io = resources, resources.io
        self._stage: StageName = stage
        self._switches = switches
        self._access = Access.of(Role.WORKER)
        self._pending: concurrent.futures.Future[Any] | None = None
        self._address = self._metrics_address = ""
        # The epoch of the last switch that this stage requested of itself.
        self._commanded = 0
        self.scheduler = self._io.run(self._connect(), OPEN_S)
        self.scheduler.devices = resources.activity.devices
        resources.stack.callback(lambda: self._io.run(self.scheduler.close(), CLOSE_S))

    async def _connect(self) -> SchedulerClient:
        # gRPC's channels belong to the loop that they are made on.
        parallelism = self._switches.parallelism
        return SchedulerClient(
            self._resources.scheduler_address,
            self._access,
            stage=self._stage,
            name=self._resources.name,
            incarnation=secrets.randbits(64),
            capacity=parallelism.devices,
            parallelism=parallelism,
            heartbeat_s=self._resources.config.scheduler.heartbeat_s,
            outage_s=self._resources.config.bus.outage_s,
        )

    def serve(self, servicer: StageServicer, bind: str) -> JoinReply:
        """Serves at `bind`, joins the run and begins heartbeats. Raises PortInUse, ServiceUnavailable."""
        resources = self._resources
        server = self._io.run(self._start(servicer, bind), OPEN_S)
        resources.stack.callback(lambda: self._io.run(server.stop(), CLOSE_S))
        joining = self.scheduler.join(advertised_address(self._address))
        membership = self._io.run(joining, RETRY_S + SLACK_S)
        metrics = MetricsEndpoint(
            resources.config.obs.metrics,
            [server.calls.samples, lambda: figures(resources.activity, self._stage)],
            tokens=tokens_to_accept(),
            tls=self._access.tls,
        )
        self._metrics_address = self._io.run(metrics.start(), CLOSE_S)
        resources.stack.callback(lambda: self._io.run(metrics.close(), CLOSE_S))
        resources.stack.callback(lambda: self._switches.close(f"{resources.name} left"))
        self._io.spawn(self._heartbeats())
        return membership

    async def _start(self, servicer: StageServicer, bind: str) -> Server:
        server = Server(
            self._resources.name,
            bind,
            tokens=tokens_to_accept(),
            tls=self._access.tls,
            drain_s=1.0,
            request_bytes=COMMAND_BYTES,
            audit=Audit(self._resources.run_dir / AUDIT_FILE, self._resources.name),
        )
        add_to(server, servicer)
        self._address = await server.start()
        return server

    def announce(self) -> None:
        """Reports to this process's parent that the stage is ready, and where it serves."""
        announce(self._resources.name, self._address, self._metrics_address)

    # --- heartbeats -----------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        """Sends heartbeats. Never returns; raises when the scheduler stays away or refuses this stage."""
        while True:
            reply = await self._heartbeat()
            if reply.stop:
                self._resources.requests.run_ended.set()
            await asyncio.sleep(reply.next_s)

    async def _heartbeat(self) -> HeartbeatReply:
        activity = self._resources.activity
        self.scheduler.devices = activity.devices
        return await self.scheduler.heartbeat(
            running=self.scheduler.parallelism.devices,
            version=activity.version,
            gauges=activity.reported(),
            spans=activity.take_spans(),
            transfers=activity.transfers,
        )

    def last_heartbeat(self) -> None:
        """Reports what was done since the heartbeat before; a scheduler that is gone is not waited for."""
        try:
            self._io.run(self._heartbeat(), FAREWELL_S)
        except EarlError as error:
            log.warning("the scheduler was not told the last spans: %s", error)

    # --- work -----------------------------------------------------------------------------------

    def poll(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """The answer of a call that waits at the scheduler for work; None while it is out, after NOTICE_S.

        The call is made where none is out; there is one at a time. Raises as the call.
        """
        if self._pending is None:
            self._pending = self._io.submit(call())
        done, _ = concurrent.futures.wait([self._pending], timeout=NOTICE_S)
        if not done:
            return None
        answer, self._pending = self._pending, None
        return answer.result()

    def withdraw(self) -> None:
        """Withdraws the call that waits for work, if one does: it asks for ranks that are no longer there."""
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None

    # --- switches -------------------------------------------------------------------------------

    @property
    def parallelism(self) -> Parallelism:
        """The parallelism of the ranks now."""
        return self._switches.parallelism

    @property
    def switch_waits(self) -> bool:
        """Returns whether a command of another parallelism waits for a boundary of the work."""
        return self._switches.waiting

    def next_switch(self) -> bytes:
        """The command to carry out a switch that waits, b"" if there is none; `end_switch` must follow."""
        command = self._switches.begin()
        if command is None:
            return b""
        stays = command.parallelism.devices == self.parallelism.devices
        kind = RankCommand.SWITCH if stays else RankCommand.REFORM
        return kind.encode(command_to_ranks(command))

    def command_switch(self, parallelism: Parallelism, limits: SwitchConfig, reason: str) -> None:
        """Requests a switch of this stage itself; `next_switch` begins it, its end is reported.

        Raises IllegalParallelism.
        """
        epoch, tolerance = max(self._commanded, self._switches.epoch) + 1, limits.logprob_tolerance
        command = SwitchCommand(epoch, parallelism, limits, tolerance, reason, time.monotonic())
        self._switches.ask(command)
        self._commanded = epoch

    def end_switch(self, command: SwitchCommand, outcome: SwitchOutcome) -> None:
        """Answers the caller of a switch. From now on work is requested for the ranks' parallelism."""
        log_outcome(command, outcome)
        if command.epoch == self._commanded:
            report = ended_switch(self.parallelism, command, outcome)
            self._io.call_soon(self.scheduler.report_switch, report)
        if not outcome.rolled_back:
            self.withdraw()
            self._io.call_soon(self.scheduler.set_parallelism, outcome.parallelism, outcome.epoch)
        self._switches.end(outcome)


def carry_out_switch(
    body: bytes, change: ParallelismChange, activity: Activity, rank0: StageRank0 | None
) -> None:
    """Carries out RankCommand.SWITCH on every rank. A collective. Raises as reshard.switch.switch."""
    command = command_from_rank0(body)
    with activity.phase(SWITCHING):
        outcome = switch(command, change)
    if rank0 is not None:
        rank0.end_switch(command, outcome)
