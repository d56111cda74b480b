"""The state of a run: its counters and versions, and the batch in its trainer's hands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from services.scheduler.state.device_move import DeviceMove
from services.scheduler.state.tickets import EpisodeResult, Purpose


class Batch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The one batch that is planned and not yet committed. lost: members whose arena is gone.

    tickets: those that were played for it. replays: those that train on columns of earlier ones again.
    """

    id: int
    version: int
    purpose: Purpose
    tickets: list[int]
    publish: bool
    checkpoint: bool
    progress: float
    first_of_phase: bool
    lost: list[int] = []
    replays: list[int] = []
    handouts: int = 0

    def lose(self, number: int) -> None:
        """Records that a ticket's samples are lost. The trainer may have read them: its next call tells."""
        if number in self.tickets and number not in self.lost:
            self.lost.append(number)


class CommittedBatch(NamedTuple):
    """A batch that is trained, with the results of its tickets, the labels of their environments, and their
    seats; no seats where the policy has one in every episode. against: of each ticket that was played against
    a frozen version, the version of the policy that chose it. replays: the results of its replay tickets,
    which count in nothing else."""

    batch: Batch
    results: list[EpisodeResult]
    environments: list[str]
    seats: Sequence[int] = ()
    against: Sequence[int] = ()
    replays: Sequence[EpisodeResult] = ()


class RunCounters(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counters and versions. version: the one being trained, 0 until a trainer group reconciled.
    checkpoint: the newest version of which a checkpoint is known; next_checkpoint: of which one is being
    written, as far as the ledger asked for it; 1 where there is none.

    takes: purpose -> index -> how many instances were given up there, so that a substitute is played.
    """

    version: int = 0
    published: int = 0
    weight_keys: list[str] = []
    trainer: str = ""
    trainer_incarnation: int = 0
    next_ticket: int = 1
    next_group: int = 1
    next_batch: int = 1
    last_batch: int = 0
    fence: int = 0
    takes: dict[str, dict[int, int]] = {}
    train_over: bool = False
    checkpoint: int = 1
    next_checkpoint: int = 1
    # The teacher counts in no batch any more.
    weaned: bool = False
    elapsed_s: float = 0.0
    # The longest time for which a member did not have to report, ever.
    silent_s: float = 0.0
    train_began_s: float | None = None
    # The last move of devices between rollout and trainer, in progress or ended.
    move: DeviceMove | None = None
