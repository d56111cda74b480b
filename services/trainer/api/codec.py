"""Batch plans as plain values: where generated messages end."""

from __future__ import annotations

from typing import Literal

from earl.errors import TrainerError
from earl.message_fields import from_message
from earl.v1 import scheduler_pb2
from services.trainer.step.plan import ReplicaSequence, RoleColumn, TrainingPlan

_OBJECTIVES: dict[int, Literal["policy_gradient", "imitate"]] = {
    scheduler_pb2.OBJECTIVE_POLICY_GRADIENT: "policy_gradient",
    scheduler_pb2.OBJECTIVE_IMITATE: "imitate",
}


def decode_plan(data: bytes, ranks: int) -> TrainingPlan:
    """The plan of a serialised BatchPlan for `ranks` replicas. Raises TrainerError if it is for others."""
    plan = scheduler_pb2.BatchPlan.FromString(data)
    if len(plan.ranks) != ranks:
        raise TrainerError(
            f"batch {plan.batch_id} is planned for {len(plan.ranks)} replicas, the trainer has {ranks}",
            "restart the trainer so that the scheduler learns its size",
        )
    if plan.objective not in _OBJECTIVES:
        raise TrainerError(
            f"batch {plan.batch_id} has the unknown objective {plan.objective}",
            "run scheduler and trainer of one version",
        )
    ranks_items = tuple(map(_items, plan.ranks))
    kept = tuple((tickets.start, tickets.stop) for tickets in plan.kept)
    return from_message(
        TrainingPlan, plan, objective=_OBJECTIVES[plan.objective], ranks=ranks_items, kept=kept
    )


def _items(rank: scheduler_pb2.RankItems) -> tuple[ReplicaSequence, ...]:
    """The sequences by their places in the batch, however they arrived: sums keep their order."""
    return tuple(sorted(map(_item, rank.items), key=lambda item: item.position))


def _item(item: scheduler_pb2.BatchItem) -> ReplicaSequence:
    if item.start_token or item.stop_token not in (0, item.total_tokens):
        raise TrainerError(
            f"{item.descriptor_key}: slice {item.start_token}:{item.stop_token} of {item.total_tokens}",
            "ranks of one replica split sequences among themselves: plan whole ones",
        )
    columns = tuple(from_message(RoleColumn, column) for column in item.columns)
    return from_message(ReplicaSequence, item, key=item.descriptor_key, columns=columns)
