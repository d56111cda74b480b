"""The results of a frozen model's stage: a column of log-probs in the ranks' arenas, or a score.

    LogprobOutput  put: in place in this rank's arena ─ publish ─► the scheduler gets the place
    ScoreOutput    put: kept here ─ publish: gathered ─► the scheduler gets the number, nothing stays

One lease at a time: `begin`, `put` at most once, `publish`, `results`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.process_group import Group
from services.trainer.reference.logprob_store import LogprobStore, logprob_key
from services.trainer.reference.mesh import ReferenceMesh
from services.trainer.reference.policy import FrozenPolicy, MaskedTrajectory, slices
from services.trainer.reference.reference_client import LogprobColumn, ReferenceItem, SequenceScore
from services.trainer.reference.scorer import FrozenScorer

CALL_S = 30.0
# Tokens of a lease where nothing is kept of it: bounded by what a forward pass takes alone.
UNBOUNDED_TOKENS = 1 << 40


class StageOutput(Protocol):
    """The results of one rank's leases. what: they are, for traces."""

    what: str

    @property
    def free_tokens(self) -> int:
        """Tokens of a lease for whose results there is surely space."""
        ...

    @property
    def gauges(self) -> Mapping[str, float]: ...

    def begin(self) -> None:
        """The next lease."""
        ...

    def put(
        self, mesh: ReferenceMesh, policy: FrozenPolicy, trajectories: Sequence[MaskedTrajectory]
    ) -> bool:
        """Computes this rank's part of the lease; returns whether there was space. A collective of the ranks
        of a replica."""
        ...

    def publish(self) -> None:
        """Makes the lease's results known. A collective of all ranks."""
        ...

    def results(
        self, mesh: ReferenceMesh, replica: int, items: Sequence[ReferenceItem]
    ) -> Mapping[ReferenceItem, LogprobColumn | SequenceScore]:
        """Returns the scheduler's answer for a replica's items, in the order in which they were put."""
        ...


class LogprobOutput:
    """A column of log-probs for each trajectory, until the trainer has read it."""

    what = "logprobs"

    def __init__(self, group: Group, io: IoThread, store: LogprobStore, role: str) -> None:
        """A collective."""
        self._group, self._io, self._store, self._role = group, io, store, role
        # Names what this life of the stage publishes.
        self._life = group.broadcast(secrets.token_hex(8).encode()).decode()
        self._leases = 0

    @property
    def free_tokens(self) -> int:
        return self._store.free_tokens

    @property
    def gauges(self) -> Mapping[str, float]:
        return {"arena_used_fraction": self._store.used_fraction}

    def begin(self) -> None:
        self._leases += 1

    def put(
        self, mesh: ReferenceMesh, policy: FrozenPolicy, trajectories: Sequence[MaskedTrajectory]
    ) -> bool:
        tensor = mesh.tensor
        loss_mask = np.concatenate([trajectory.loss_mask for trajectory in trajectories])
        box = slices(loss_mask, tensor.size)[tensor.rank]
        name = logprob_key(self._life, self._leases, self._group.rank, self._role)
        keys = [trajectory.key for trajectory in trajectories]
        array = self._io.call(self._store.reserve(name, keys, len(loss_mask), box), CALL_S)
        # Ranks of a replica compute together, those without space too.
        into = np.empty(box.size, np.float32) if array is None else array
        policy.logprobs(trajectories, box, into)
        return array is not None

    def publish(self) -> None:
        self._io.call(self._store.publish(), CALL_S)

    def results(
        self, mesh: ReferenceMesh, replica: int, items: Sequence[ReferenceItem]
    ) -> Mapping[ReferenceItem, LogprobColumn | SequenceScore]:
        """Locates the log-probs of the items, end to end in what the replica's ranks hold."""
        tp = mesh.tensor.size
        ranks = range(replica * tp, replica * tp + tp)
        keys = tuple(logprob_key(self._life, self._leases, rank, self._role) for rank in ranks)
        columns, offset = {}, 0
        for item in items:
            columns[item] = LogprobColumn(keys, offset)
            offset += item.total_tokens
        return columns


class ScoreOutput:
    """A score of each trajectory, which the scheduler keeps."""

    what = "scores"
    free_tokens = UNBOUNDED_TOKENS
    gauges: Mapping[str, float] = {}

    def __init__(self, group: Group) -> None:
        self._group = group
        self._scores: list[float] = []
        # By rank, of the lease that was published last.
        self._gathered: list[list[float]] = []

    def begin(self) -> None:
        self._scores = []

    def put(
        self, mesh: ReferenceMesh, policy: FrozenPolicy, trajectories: Sequence[MaskedTrajectory]
    ) -> bool:
        assert isinstance(policy, FrozenScorer)
        self._scores = policy.scores(trajectories).tolist()
        return True

    def publish(self) -> None:
        self._gathered = list(map(json.loads, self._group.gather(json.dumps(self._scores).encode())))

    def results(
        self, mesh: ReferenceMesh, replica: int, items: Sequence[ReferenceItem]
    ) -> Mapping[ReferenceItem, LogprobColumn | SequenceScore]:
        scores = self._gathered[replica * mesh.tensor.size]
        return {item: SequenceScore(score) for item, score in zip(items, scores, strict=True)}
