"""Rank 0 of a frozen policy's stage: it leases work from the scheduler, and follows publications.

WeightsPublished ─► VOID? READ? ─┐
scheduler ─ lease that fits ─────┴─► one command for all ranks ─► outcome ─► scheduler
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence

from earl.errors import TrainerError
from services.trainer.reference.origin import Origin
from services.trainer.reference.reference_client import (
    LeaseOffer,
    LogprobColumn,
    ReferenceClient,
    ReferenceItem,
    SequenceScore,
)
from services.trainer.stage.commands import RankCommand
from services.trainer.stage.rank_resources import RankResources
from services.trainer.stage.stage_rank0 import NOTICE_S, SLACK_S, StageRank0

log = logging.getLogger(__name__)

# A lease call waits this long for work; other ranks wait with it.
WAIT_S = 2.0
# Reads of the weights in a row that may fail, and the pause after each.
READS = 20
PAUSE_S = 1.0


class ReferenceRank0:
    """The word of a role's stage with the scheduler.

    Methods are called from the computing thread, `published` from the I/O thread's loop.
    """

    def __init__(self, resources: RankResources, stage: StageRank0, origin: Origin, role: str) -> None:
        self._config, self._io = resources.config, resources.io
        self._activity, self._requests = resources.activity, resources.requests
        self.stage = stage
        self._leases = ReferenceClient(stage.scheduler, role)
        self._role = role
        self._origin = origin
        # The newest version on the bus, and the keys of the origin's version where it can be read.
        self._newest = 0
        self._keys: tuple[str, ...] = ()
        self._voided = False
        self._failures = 0
        # Whether the ranks have the weights.
        self.has_weights = False
        # The last lease had nothing of what waits.
        self._refused = False

    def published(self, version: int, keys: Sequence[str]) -> None:
        """The newest version that was published; 0: none yet."""
        self._newest = version or self._newest
        if self._origin.void(version):
            self._voided, self._keys = True, ()
        elif version == self._origin.version:
            self._keys = tuple(keys)

    def next_command(self, loaded: bool, credit_tokens: int) -> bytes:
        """Returns the next command of all ranks; IDLE after WAIT_S at the latest. Raises CheckpointError."""
        waited_s = 0.0
        while True:
            self._io.check()
            if self._requests.stop.is_set() or self._requests.run_ended.is_set():
                return RankCommand.LEAVE.encode()
            if self._voided:
                self._voided = False
                return RankCommand.VOID.encode()
            if command := self.stage.next_switch():
                return command
            if loaded:
                offer = self._offer(credit_tokens)
                if offer is not None:
                    return (RankCommand.COMPUTE if offer.lease else RankCommand.IDLE).encode(offer.lease)
                continue
            if self._origin.kept or self._keys:
                return RankCommand.READ.encode(json.dumps(self._keys).encode())
            self._origin.refuse_missed(self._newest)
            if waited_s >= WAIT_S:
                return RankCommand.IDLE.encode()
            self._requests.stop.wait(NOTICE_S)
            waited_s += NOTICE_S

    def _offer(self, credit_tokens: int) -> LeaseOffer | None:
        """Returns the scheduler's offer, None while it has not answered; requests one if none is pending."""
        most_tokens = self.stage.parallelism.dp * self._config.frozen_stage(self._role).microbatch_tokens
        longest = self._config.context_tokens if self._refused else self._config.planned_context
        most_tokens = max(most_tokens, longest)
        offer = self.stage.poll(lambda: self._leases.lease(min(credit_tokens, most_tokens), WAIT_S))
        if offer is None:
            return None
        if offer.run_ended:
            self._requests.run_ended.set()
        self._activity.gauges["waiting_tokens"] = float(offer.waiting_tokens)
        # There is work, and none of it fits: trajectories must be trained or dropped first, or one alone is
        # longer than what a lease has.
        self._refused = bool(offer.waiting_tokens) and not offer.lease
        self._activity.gauges["arena_full"] = float(self._refused)
        return offer

    def complete(
        self,
        fence: int,
        results: Mapping[ReferenceItem, LogprobColumn | SequenceScore],
        lost: Sequence[ReferenceItem],
    ) -> None:
        """Reports the outcome of a lease to the scheduler."""
        within_s = 2 * self.stage.scheduler.retry_s + SLACK_S
        refused = self._io.run(self._leases.complete(fence, results, lost), within_s)
        if refused:
            log.info("%d of %d results came too late", refused, len(results))

    def loaded(self, ok: bool) -> None:
        """Counts reads of the weights that failed in a row. Raises TrainerError after READS of them."""
        self.has_weights = ok
        self._failures = 0 if ok else self._failures + 1
        if self._failures >= READS:
            raise TrainerError(
                f"the policy of the {self._role} could not be read {READS} times in a row",
                "is the trainer alive? the log names what was missing",
            )
        if not ok:
            self._requests.stop.wait(PAUSE_S)
