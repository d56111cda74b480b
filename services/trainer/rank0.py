"""What only rank 0 does beside training: its server, its membership, its word with the scheduler."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging

from earl.config.run import RunConfig
from earl.errors import EarlError
from earl.rpc.audit import Audit
from earl.rpc.auth import TlsFiles
from earl.rpc.options import COMMAND_BYTES
from earl.rpc.peers import advertised
from earl.rpc.server import Server
from earl.rpc.tokens import accepted
from earl.scheduler_client import RETRY_S, SchedulerClient
from services.trainer.api.scheduler_client import BatchClient, NextBatch
from services.trainer.api.servicer import TrainerServicer, serve
from services.trainer.checkpoint.manifest import TrainingProgress
from services.trainer.ranks.activity import Activity
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.requests import StageRequests
from services.trainer.ranks.switch_requests import Command, Epochs, Outcome

log = logging.getLogger(__name__)

# A NextBatch call waits this long for a plan; other ranks wait with it.
WAIT_S = 2.0
# How soon a request (stop, save) is noticed while waiting for a plan.
NOTICE_S = 0.05
# Calls while leaving: the run's launcher waits stack.stop_s for all of it.
LEAVING_S = 3.0
SLACK_S = 5.0


class Lead:
    """Rank 0's voice; its methods are called from the computing thread."""

    def __init__(
        self,
        config: RunConfig,
        side: IoThread,
        scheduler: SchedulerClient,
        activity: Activity,
        requests: StageRequests,
        epochs: Epochs,
    ) -> None:
        self._config = config
        self._side = side
        self._scheduler = scheduler
        self._batches = BatchClient(scheduler)
        self._activity = activity
        self._requests = requests
        self._epochs = epochs
        self._asked: concurrent.futures.Future[NextBatch] | None = None
        # As the scheduler said last: the version with the best evaluation, 0 if there is none, and
        # those whose checkpoints must stay.
        self.best = 0
        self.held: frozenset[int] = frozenset()

    async def start(self, tls: TlsFiles | None, audit: Audit) -> tuple[Server, str]:
        """Serve and join; returns the server and its address. Raises PortInUse, ServiceUnavailable."""
        server = Server(
            self._scheduler.worker.name,
            self._config.trainer.bind,
            tokens=accepted(),
            tls=tls,
            drain_s=1.0,
            request_bytes=COMMAND_BYTES,
            audit=audit,
        )
        serve(server, TrainerServicer(self._activity, self._requests, self._scheduler, self._epochs))
        address = await server.start()
        membership = await self._scheduler.join(advertised(address))
        self._period_s = min(self._config.scheduler.heartbeat_s, membership.lease_s / 3)
        return server, address

    @property
    def lost_after_s(self) -> float:
        """How long a worker of the run may be without a heartbeat before it counts as lost."""
        return self._scheduler.lost_after_s

    async def heartbeats(self) -> None:
        """For ever; raises when the scheduler stays away or refuses this trainer."""
        while True:
            reply = await self._scheduler.heartbeat(
                running=self._scheduler.parallelism.devices,
                version=self._activity.version,
                gauges=dict(self._activity.gauges),
                spans=self._activity.take_spans(),
                transfers=self._activity.transfers,
            )
            if reply.stop:
                self._requests.over.set()
            await asyncio.sleep(self._period_s)

    def reconcile(self, progress: TrainingProgress) -> None:
        """The ledger is brought to what the parameters were trained on."""
        rolled_back = self._side.run(
            self._batches.reconcile(progress.version, progress.next_batch_id, progress.consumed.ranges()),
            2 * RETRY_S + SLACK_S,
        )
        if rolled_back:
            log.warning("%d tickets trained after the checkpoint were rolled back", rolled_back)

    def next_plan(self) -> bytes | None:
        """A serialised plan; b"" if none came in WAIT_S; None as soon as something is requested."""
        while not self._requests.stop.is_set():
            self._side.check()
            if self._requests.wants_save or self._epochs.wanted:
                return None
            if self._asked is None:
                self._asked = self._side.submit(self._batches.next_batch(WAIT_S))
            done, _ = concurrent.futures.wait([self._asked], timeout=NOTICE_S)
            if not done:
                continue
            answer = self._asked.result()
            self._asked = None
            self.best, self.held = answer.best, answer.held
            if answer.over and not answer.plan:
                self._requests.over.set()
                return None
            return answer.plan
        return None

    def begin_switch(self) -> Command | None:
        """What was asked for, to be carried out now; `switched` ends it."""
        return self._epochs.begin()

    def switched(self, outcome: Outcome) -> None:
        """The next batch is asked for in the cut that the ranks have now; one for another is forgotten."""
        if not outcome.rolled_back:
            if self._asked is not None:
                self._asked.cancel()
                self._asked = None
            self._side.call_soon(self._scheduler.set_parallelism, outcome.parallelism, outcome.epoch)
        self._epochs.end(outcome)

    def commit(self, batch_id: int, version: int, metrics: dict[str, float]) -> None:
        """The batch's tickets are trained.

        A scheduler that is gone while the trainer leaves is no failure, nor one that was told and whose
        answer stayed out: the checkpoint that follows holds the batch, and the ledger is brought to it on
        resume.
        """
        self._tell(lambda deadline_s: self._batches.commit(batch_id, version, metrics, deadline_s))

    def record_checkpoint(self, progress: TrainingProgress, path: str) -> None:
        ranges = progress.consumed.ranges()
        self._tell(
            lambda deadline_s: self._batches.record_checkpoint(progress.version, path, ranges, deadline_s)
        )

    def _tell(self, call) -> None:
        stop, over = self._requests.stop, self._requests.over.is_set()
        deadline_s = LEAVING_S if over or stop.is_set() else RETRY_S
        try:
            self._side.run(call(deadline_s), 2 * deadline_s + SLACK_S, stop)
        except EarlError as error:
            if not over:
                self._requests.excuse(error)
            else:
                log.warning("the scheduler was not told: %s", error)
