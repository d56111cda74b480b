"""The batch to train: the scheduler's batch plan as a plain value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from earl.parallelism import REFERENCE


@dataclass(frozen=True, slots=True)
class RoleColumn:
    """The place of a sequence's log-probs under the frozen policy of a role: from element `offset` on of what
    these registry keys hold together, in the tensor named as the role."""

    role: str
    keys: tuple[str, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaSequence:
    """One sequence for one replica: tokens [0, total_tokens) of the columns under `key`.

    columns: where its log-probs under frozen policies lie, of the roles whose are wanted. position: its
    place in the batch, the same whenever the batch is trained, which its ticket is not. masked: none of its
    tokens counts in the loss. protected_kl: weight of the KL to the reference policy on its tokens, beside
    trainer.kl_coefficient. source: of a replay, the trained ticket whose columns it is, which lie in a file,
    reference_kept: with their reference log-probs; else 0.
    """

    ticket_id: int
    attempt: int
    key: str
    advantage: float
    total_tokens: int
    columns: tuple[RoleColumn, ...] = ()
    position: int = 0
    masked: bool = False
    protected_kl: float = 0.0
    source: int = 0
    reference_kept: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles whose log-probs are there to be read, in the columns or in the file of a replay."""
        kept = (REFERENCE,) if self.reference_kept else ()
        return (*(column.role for column in self.columns), *kept)


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """One batch. `ranks[r]` are the sequences of replica r, by position; training it makes version + 1.

    progress: fraction of the phase done, 0..1. first_of_phase: the optimizer's moments start again. kept:
    half-open ranges of the tickets whose columns a later batch may train on again. teacher_weight: what
    teacher.coefficient is multiplied by, 0..1.
    """

    batch_id: int
    version: int
    objective: Literal["policy_gradient", "imitate"]
    ranks: tuple[tuple[ReplicaSequence, ...], ...]
    publish: bool
    checkpoint: bool
    progress: float
    first_of_phase: bool
    kept: tuple[tuple[int, int], ...] = ()
    teacher_weight: float = 0.0

    @property
    def ticket_ids(self) -> list[int]:
        return [item.ticket_id for items in self.ranks for item in items]
