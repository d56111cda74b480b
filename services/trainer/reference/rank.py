"""One rank's loop, the same on every rank of the stage; rank 0 decides, its commands are broadcast.

    lease ─► each replica reads its trajectories' tokens and masks from the rollout arenas
          ─► log-probs, each rank of its slice, in place in its own arena ─► descriptors ─► the scheduler
    and the trainer's ranks read the slices straight from these arenas; or scores ─► the scheduler.
    switch: the same ranks in another parallelism · reform: other processes are the ranks (stage/reform.py)

Promise: what cannot be read is reported lost, what finds no room waits; nothing of a rank that died
is ever reported, for then the whole stage ends, starts again, and is leased the same work again. Ranks change
between two leases, and what former ranks computed stays in their processes' arenas until it is trained.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from earl.dispatch.read.reader import SequenceRead
from earl.errors import DataPlaneError, OutOfMemory
from earl.obs import tracing
from earl.parallelism import REFERENCE
from services.trainer.ranks.activity import READING, gather_report
from services.trainer.reference.mesh import ReferenceMesh
from services.trainer.reference.origin import Origin, PublishedVersion
from services.trainer.reference.outputs import StageOutput
from services.trainer.reference.parallelism_change import ReferenceChange, canary_logprobs
from services.trainer.reference.policy import (
    FrozenPolicy,
    MaskedTrajectory,
    ReferencePolicy,
    WorkAbandoned,
    trainable,
)
from services.trainer.reference.rank0 import ReferenceRank0
from services.trainer.reference.reference_client import (
    LogprobColumn,
    ReferenceItem,
    SequenceScore,
    decode_lease,
)
from services.trainer.stage.commands import RankCommand, run_commands
from services.trainer.stage.rank_resources import RankResources
from services.trainer.stage.reform import Reform, begin_reform
from services.trainer.stage.stage_rank0 import carry_out_switch

log = logging.getLogger(__name__)

LOADING, COMPUTING = "loading", "computing"
READ_SLACK_S = 10.0
# Leases that the rate is taken over: single ones differ with the sequences that happened to wait.
MEASURED = 16


class ReferenceRank:
    """One rank of the stage; the caller (service.py) opens and closes all parts. rank0: on rank 0 only."""

    def __init__(
        self,
        resources: RankResources,
        mesh: ReferenceMesh,
        policy: FrozenPolicy,
        output: StageOutput,
        origin: Origin,
        rank0: ReferenceRank0 | None,
        role: str = REFERENCE,
    ) -> None:
        config = self._config = resources.config
        self._role = role
        self._group, self._io, self._dispatcher = resources.group, resources.io, resources.dispatcher
        self._activity = resources.activity
        self._mesh = mesh
        self._policy = policy
        self._output = output
        self._origin = origin
        self._rank0 = rank0
        self._tickets = tracing.TracedTickets(config.name, config.seed, config.obs.traced_fraction)
        self._loaded = False
        # (tokens, device-seconds) of the last leases.
        self._computed: deque[tuple[int, float]] = deque(maxlen=MEASURED)
        self.reform: Reform | None = None

    def load(self) -> None:
        """Reads the weights, if the ranks before these had them. A collective. Raises as they are read."""
        had = self._rank0 is not None and self._rank0.has_weights
        if self._group.broadcast(b"weights" if had else b""):
            self._load(())

    def canary_logprobs(self) -> np.ndarray:
        """Log-probs of the canaries as these ranks compute them, float32[tokens]. A collective."""
        return canary_logprobs(self._policy, loaded=self._loaded)

    def run(self) -> None:
        """Works until the run has ended, a stop was requested, or other ranks take over: `reform` has how.

        Raises the first failure.
        """
        handlers = {
            RankCommand.VOID: lambda _: self._void(),
            RankCommand.READ: lambda body: self._load(json.loads(body)),
            RankCommand.COMPUTE: self._compute,
            RankCommand.SWITCH: self._switch,
            RankCommand.REFORM: self._reform,
            RankCommand.LEAVE: lambda _: self._leave(),
        }
        run_commands(self._group, self._next_command, handlers)

    def _next_command(self) -> bytes:
        """Rank 0's command; the others' is ignored. A collective."""
        # On every rank: one that is not told what may be freed would fill up and stall the others.
        self._io.check()
        # The tokens that every rank has space for: any of them may get them all.
        free = self._group.gather(str(self._output.free_tokens).encode())
        credit_tokens = min(int(tokens) for tokens in free)
        return self._rank0.next_command(self._loaded, credit_tokens) if self._rank0 is not None else b""

    def _leave(self) -> None:
        if self._rank0 is not None:
            self._rank0.stage.last_heartbeat()

    # --- the policy ---------------------------------------------------------------------------

    def _void(self) -> None:
        """Drops the weights: warm-up begins again, and reinforcement learning starts from another policy."""
        self._loaded = False
        if self._rank0 is not None:
            self._rank0.has_weights = False
            self._origin.forget()
        self._group.barrier()

    def _load(self, keys: Sequence[str]) -> None:
        """Reads the weights, from disk if they are kept there, else from the trainer's arenas."""
        kept = self._group.agree(self._origin.kept)
        try:
            with self._activity.phase(LOADING):
                if kept:
                    self._policy.fill(self._origin.directory)
                else:
                    dtype, read_s = self._config.model.weight_dtype, self._config.data_plane.read_s
                    published = PublishedVersion(self._io, self._dispatcher, keys, dtype, read_s)
                    published.fill(self._local)
                    if self._group.leads:
                        published.keep(self._origin, self._policy.spec)
            ok = True
        except DataPlaneError as error:
            ok = False
            log.warning("version %d cannot be read: %s", self._origin.version, error)
        self._loaded = self._group.agree(ok)
        self._activity.version = self._origin.version if self._loaded else 0
        if self._rank0 is not None:
            self._rank0.loaded(self._loaded)

    @property
    def _local(self) -> ReferencePolicy:
        """The policy of a stage whose weights are published, or move: one that another server has does
        neither."""
        assert isinstance(self._policy, ReferencePolicy)
        return self._policy

    def _switch(self, body: bytes) -> None:
        change = ReferenceChange(self._mesh, self._local, loaded=self._loaded)
        carry_out_switch(body, change, self._activity, self._rank0.stage if self._rank0 is not None else None)
        self._mesh, self._policy = change.mesh, change.policy

    def _reform(self, body: bytes) -> bool:
        stage = self._rank0.stage if self._rank0 is not None else None
        former = self._mesh.parallelism
        # What lasts is on the disk: the frozen weights.
        self.reform = begin_reform(body, self._group, former, lambda: None, self.canary_logprobs, stage)
        return self.reform is not None

    # --- work ---------------------------------------------------------------------------------

    def _compute(self, body: bytes) -> None:
        lease = decode_lease(body)
        began_ns = time.time_ns()
        self._output.begin()
        items = lease.ranks[self._mesh.replica]
        with self._activity.phase(READING):
            trajectories = self._read(items)
            # Ranks of one replica must leave out the same.
            lost = self._gathered([i for i, trajectory in enumerate(trajectories) if trajectory is None])
        left_out = lost[self._mesh.replica]
        kept = [t for i, t in enumerate(trajectories) if t is not None and i not in left_out]
        started = time.perf_counter()
        placed, fits = True, True
        with self._activity.phase(COMPUTING):
            try:
                placed = not kept or self._output.put(self._mesh, self._policy, kept)
            except OutOfMemory as error:
                # With several ranks of a replica, the others are in the middle of the pass.
                if self._mesh.tensor.size > 1:
                    raise
                log.warning("a lease of %d sequences is given up: %s", len(kept), error)
                fits = False
            except WorkAbandoned:
                # The next command is to leave, and the scheduler leases the same again.
                placed = False
        seconds = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
        # A rank without a sequence of this lease adds nothing.
        device_s = float(self._group.sum(seconds)[0])
        self._output.publish()
        full, given_up = self._gathered([] if placed else [0]), self._gathered([] if fits else [0])
        report = gather_report(self._group, self._dispatcher.totals.values())
        self._activity.transfers, self._activity.devices = report.transfers, report.devices
        if self._rank0 is None:
            return
        results: dict[ReferenceItem, LogprobColumn | SequenceScore] = {}
        for replica, leased in enumerate(lease.ranks):
            if not full[replica] and not given_up[replica]:
                usable = [item for index, item in enumerate(leased) if index not in lost[replica]]
                results |= self._output.results(self._mesh, replica, usable)
        gone = [
            item
            for replica, leased in enumerate(lease.ranks)
            for index, item in enumerate(leased)
            if index in lost[replica] or given_up[replica]
        ]
        attributes = {"version": self._origin.version, "sequences": len(results)}
        for item in results if tracing.active() else ():
            parent = self._tickets.parent(item.ticket_id)
            tracing.record(f"{self._role} {self._output.what}", parent, began_ns, time.time_ns(), attributes)
        self._computed.append((sum(item.total_tokens for item in results), device_s))
        tokens, busy_s = map(sum, zip(*self._computed, strict=True))
        self._activity.gauges |= {
            # While all ranks compute.
            "tokens_per_s": self._group.size * tokens / max(busy_s, 1e-9),
            "memory_fraction": report.memory_fraction,
            **self._output.gauges,
        }
        self._rank0.complete(lease.fence, results, gone)

    def _gathered(self, mine: list[int]) -> list[set[int]]:
        """Returns for each replica the union of what its ranks name. A collective."""
        tp = self._mesh.tensor.size
        by_rank = [json.loads(data) for data in self._group.gather(json.dumps(mine).encode())]
        return [set().union(*by_rank[first : first + tp]) for first in range(0, len(by_rank), tp)]

    def _read(self, items: Sequence[ReferenceItem]) -> list[MaskedTrajectory | None]:
        """Reads each trajectory's tokens and mask; None for one that cannot be read, or is no trajectory."""
        deadline_s = self._config.data_plane.read_s
        bounds = np.cumsum([0, *(item.total_tokens for item in items)])
        tokens, loss_mask = np.empty(bounds[-1], np.int32), np.empty(bounds[-1], np.uint8)
        trajectories = [
            MaskedTrajectory(item.key, tokens[start:stop], loss_mask[start:stop])
            for item, start, stop in zip(items, bounds[:-1], bounds[1:], strict=True)
        ]
        together = _read_of([item.key for item in items], tokens, loss_mask, np.diff(bounds))
        reading = self._read_all(together, trajectories, deadline_s)
        readable = self._io.run(reading, 2 * deadline_s + READ_SLACK_S)
        vocabulary = self._policy.spec.vocab
        return [
            trajectory if ok and trainable(trajectory, vocabulary) else None
            for trajectory, ok in zip(trajectories, readable, strict=True)
        ]

    async def _read_all(
        self, together: SequenceRead, trajectories: Sequence[MaskedTrajectory], deadline_s: float
    ) -> list[bool]:
        """Returns which of them could be read: all in one read, and if that fails each by itself."""
        if not trajectories:
            return []
        try:
            await self._dispatcher.read([together], deadline_s)
            return [True] * len(trajectories)
        except DataPlaneError:
            pass  # not all can be read: which, is found out one by one
        each = (
            self._dispatcher.read(
                [_read_of([t.key], t.tokens, t.loss_mask, np.array([len(t.tokens)]))], deadline_s
            )
            for t in trajectories
        )
        outcomes = await asyncio.gather(*each, return_exceptions=True)
        for trajectory, outcome in zip(trajectories, outcomes, strict=True):
            if isinstance(outcome, DataPlaneError):
                log.warning("%s cannot be read: %s", trajectory.key, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
        return [not isinstance(outcome, BaseException) for outcome in outcomes]


def _read_of(keys: list[str], tokens: np.ndarray, loss_mask: np.ndarray, rows: np.ndarray) -> SequenceRead:
    return SequenceRead(keys, rows, {"tokens": tokens, "loss_mask": loss_mask})
