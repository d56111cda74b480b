"""What only rank 0 of the stage does: its server, its membership, its word with the scheduler's dock.

WeightsPublished ─► void? load? ─┐
dock ─ lease within the room ────┴─► one command for all ranks ─► outcome ─► dock
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
from collections.abc import Mapping, Sequence

from earl.config.run import RunConfig
from earl.errors import EarlError, TrainerError
from earl.rpc.audit import Audit
from earl.rpc.auth import TlsFiles
from earl.rpc.options import COMMAND_BYTES
from earl.rpc.peers import advertised
from earl.rpc.server import Server
from earl.rpc.tokens import accepted
from earl.scheduler_client import RETRY_S, SchedulerClient
from services.trainer.api.servicer import StageServicer, serve
from services.trainer.ranks.activity import Activity
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.requests import StageRequests
from services.trainer.ranks.switch_requests import Epochs, Outcome
from services.trainer.reference.origin import Origin
from services.trainer.reference.scheduler_client import (
    LeaseOffer,
    LogprobColumn,
    ReferenceClient,
    ReferenceItem,
)

log = logging.getLogger(__name__)

COMPUTE, LOAD, VOID, SWITCH, IDLE, LEAVE = b"C", b"L", b"V", b"W", b"I", b"X"
# A lease call waits this long for work; other ranks wait with it.
WAIT_S = 2.0
# How soon a request (stop) or a publication is noticed.
NOTICE_S = 0.05
SLACK_S = 5.0
FAREWELL_S = 2.0
# Loads in a row that may fail, and the pause after each.
LOADS = 20
PAUSE_S = 1.0


class Lead:
    """Rank 0's voice. Methods are called from the computing thread, `published` from the side's loop."""

    def __init__(
        self,
        config: RunConfig,
        side: IoThread,
        scheduler: SchedulerClient,
        activity: Activity,
        requests: StageRequests,
        origin: Origin,
        epochs: Epochs,
    ) -> None:
        self._config = config
        self._side = side
        self._scheduler = scheduler
        self._trajectories = ReferenceClient(scheduler)
        self._activity = activity
        self._requests = requests
        self._origin = origin
        self._epochs = epochs
        self._asked: concurrent.futures.Future[LeaseOffer] | None = None
        # What the bus said last, and of the origin's version where it can be read.
        self._newest = 0
        self._keys: tuple[str, ...] = ()
        self._voided = False
        self._failures = 0

    async def start(self, tls: TlsFiles | None, audit: Audit) -> tuple[Server, str]:
        """Serve and join; returns the server and its address. Raises PortInUse, ServiceUnavailable."""
        server = Server(
            self._scheduler.worker.name,
            self._config.reference.bind,
            tokens=accepted(),
            tls=tls,
            drain_s=1.0,
            request_bytes=COMMAND_BYTES,
            audit=audit,
        )
        serve(server, StageServicer(self._activity, self._scheduler, self._epochs))
        address = await server.start()
        joined = await self._scheduler.join(advertised(address))
        self._period_s = min(self._config.scheduler.heartbeat_s, joined.lease_s / 3)
        self.published(joined.version, joined.weight_keys)
        return server, address

    def published(self, version: int, keys: Sequence[str]) -> None:
        """A version was published after all that were told before; 0: none yet."""
        self._newest = version or self._newest
        if self._origin.void(version):
            self._voided, self._keys = True, ()
        elif version == self._origin.version:
            self._keys = tuple(keys)

    async def heartbeats(self) -> None:
        """For ever; raises when the scheduler stays away or refuses this stage."""
        while True:
            if await self._heartbeat():
                self._requests.over.set()
            await asyncio.sleep(self._period_s)

    def farewell(self) -> None:
        """A last heartbeat, with what was done since the one before; a scheduler that is gone is let go."""
        try:
            self._side.run(self._heartbeat(), FAREWELL_S)
        except EarlError as error:
            log.warning("the scheduler was not told the last spans: %s", error)

    async def _heartbeat(self) -> bool:
        activity = self._activity
        reply = await self._scheduler.heartbeat(
            running=self._scheduler.parallelism.devices,
            version=activity.version,
            gauges=dict(activity.gauges),
            spans=activity.take_spans(),
            transfers=activity.transfers,
        )
        return reply.stop

    def command(self, loaded: bool, credit_tokens: int) -> bytes:
        """What all ranks do next; IDLE after WAIT_S at the latest. Raises CheckpointError."""
        waited_s = 0.0
        while True:
            self._side.check()
            if self._requests.stop.is_set() or self._requests.over.is_set():
                return LEAVE
            if self._voided:
                self._voided = False
                return VOID
            wanted = self._epochs.begin()
            if wanted is not None:
                return SWITCH + wanted.encode()
            if loaded:
                offer = self._offer(credit_tokens)
                if offer is not None:
                    return COMPUTE + offer.lease if offer.lease else IDLE
                continue
            if self._origin.kept or self._keys:
                return LOAD + json.dumps(self._keys).encode()
            self._origin.refuse_missed(self._newest)
            if waited_s >= WAIT_S:
                return IDLE
            self._requests.stop.wait(NOTICE_S)
            waited_s += NOTICE_S

    def _offer(self, credit_tokens: int) -> LeaseOffer | None:
        """What the dock offers, or None while it has not answered; asks it if it was not asked."""
        if self._asked is None:
            reference = self._config.reference
            most_tokens = self._epochs.parallelism.dp * reference.microbatch_tokens
            most_tokens = max(most_tokens, self._config.rollout.max_context_tokens)
            self._asked = self._side.submit(self._trajectories.lease(min(credit_tokens, most_tokens), WAIT_S))
        done, _ = concurrent.futures.wait([self._asked], timeout=NOTICE_S)
        if not done:
            return None
        offer, self._asked = self._asked.result(), None
        if offer.over:
            self._requests.over.set()
        self._activity.gauges["waiting_tokens"] = float(offer.waiting_tokens)
        # There is work, and none of it fits: trajectories must be trained or dropped first.
        self._activity.gauges["arena_full"] = float(bool(offer.waiting_tokens) and not offer.lease)
        return offer

    def switched(self, outcome: Outcome) -> None:
        """The next lease is asked for in the cut that the ranks have now; one for another ends with that."""
        if not outcome.rolled_back:
            if self._asked is not None:
                self._asked.cancel()
                self._asked = None
            self._side.call_soon(self._scheduler.set_parallelism, outcome.parallelism, outcome.epoch)
        self._epochs.end(outcome)

    def complete(
        self, fence: int, results: Mapping[ReferenceItem, LogprobColumn], lost: Sequence[ReferenceItem]
    ) -> None:
        """Tell the dock what became of a lease."""
        refused = self._side.run(self._trajectories.complete(fence, results, lost), 2 * RETRY_S + SLACK_S)
        if refused:
            log.info("%d of %d results came too late", refused, len(results))

    def loaded(self, ok: bool) -> None:
        """Counts loads that failed in a row. Raises TrainerError after LOADS of them."""
        self._failures = 0 if ok else self._failures + 1
        if self._failures >= LOADS:
            raise TrainerError(
                f"the reference policy could not be read {LOADS} times in a row",
                "is the trainer alive? the log names what was missing",
            )
        if not ok:
            self._requests.stop.wait(PAUSE_S)
