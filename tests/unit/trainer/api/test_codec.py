"""Batch plans as the trainer reads them: in the batch's order, and refused where they are not for it."""

from __future__ import annotations

from typing import Any

import pytest

from earl.errors import TrainerError
from earl.v1 import scheduler_pb2
from services.trainer.api.codec import decode_plan

GRADIENT = scheduler_pb2.OBJECTIVE_POLICY_GRADIENT


def item(ticket_id: int, position: int, **fields: Any) -> scheduler_pb2.BatchItem:
    key = f"trajectory/{ticket_id}/1"
    return scheduler_pb2.BatchItem(
        ticket_id=ticket_id, attempt=1, descriptor_key=key, advantage=0.5, total_tokens=9, position=position,
        **fields,
    )  # fmt: skip


def plan(*ranks: list[scheduler_pb2.BatchItem], objective: Any = GRADIENT) -> bytes:
    items = [scheduler_pb2.RankItems(items=rank) for rank in ranks]
    return scheduler_pb2.BatchPlan(
        batch_id=7, version=3, objective=objective, ranks=items, publish=True, progress=0.25,
        first_of_phase=True,
    ).SerializeToString()  # type: ignore[arg-type]  # fmt: skip


def test_sequences_stand_by_their_places_in_the_batch():
    decoded = decode_plan(plan([item(5, 2), item(6, 0)], [item(7, 1, stop_token=9)]), 2)
    assert [[one.ticket_id for one in rank] for rank in decoded.ranks] == [[6, 5], [7]]
    assert (decoded.batch_id, decoded.version, decoded.objective) == (7, 3, "policy_gradient")
    assert (decoded.publish, decoded.checkpoint, decoded.first_of_phase) == (True, False, True)
    first = decoded.ranks[0][0]
    assert (first.key, first.advantage, first.total_tokens, first.position) == ("trajectory/6/1", 0.5, 9, 0)


def test_a_plan_for_another_number_of_replicas_is_refused():
    with pytest.raises(TrainerError, match="planned for 1 replicas, the trainer has 2"):
        decode_plan(plan([item(1, 0)]), 2)


def test_an_objective_of_another_version_is_refused():
    with pytest.raises(TrainerError, match="unknown objective 0"):
        decode_plan(plan([item(1, 0)], objective=scheduler_pb2.OBJECTIVE_UNSPECIFIED), 1)


@pytest.mark.parametrize("part", [{"start_token": 1}, {"stop_token": 8}])
def test_a_part_of_a_sequence_is_refused(part: dict[str, int]):
    with pytest.raises(TrainerError, match="trajectory/1/1: slice"):
        decode_plan(plan([item(1, 0, **part)]), 1)
