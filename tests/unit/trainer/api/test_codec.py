"""Batch plans as the trainer reads them: in the batch's order, and refused where they are not for it."""

from __future__ import annotations

from typing import Any

import pytest

from earl.errors import TrainerError
from earl.v1 import scheduler_pb2
from services.scheduler.api.codec import encode_plan
from services.scheduler.batches.batch_plan import split_batch
from services.scheduler.batches.columns import Location
from services.scheduler.state.run import Batch
from services.scheduler.state.tickets import EpisodeResult, Purpose, Ticket
from services.trainer.api.codec import decode_plan
from services.trainer.step.plan import RoleColumn

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


def test_columns_of_roles_come_through_as_the_scheduler_planned_them():
    batch = Batch(
        id=7, version=3, purpose=Purpose.TRAIN, tickets=[1], publish=True, checkpoint=False, progress=0.0,
        first_of_phase=False,
    )  # fmt: skip
    result = EpisodeResult(descriptor_key="trajectory/1/1", total_tokens=9, trained_tokens=4)
    ticket = Ticket(
        id=1, purpose=Purpose.TRAIN, group=1, index=0, env_seed=1, sample_seed=2, temperature=1.0,
        min_version=3, result=result,
    )  # fmt: skip
    places = {"reference": {1: Location(("r/0", "r/1"), 5)}, "teacher": {1: Location(("t",))}, "other": {}}
    planned = split_batch(batch, {1: ticket}, 1, "mean", places, teacher_weight=0.25)
    decoded = decode_plan(encode_plan(planned).SerializeToString(), 1)
    assert decoded.teacher_weight == 0.25
    assert decoded.ranks[0][0].columns == (
        RoleColumn("reference", ("r/0", "r/1"), 5),
        RoleColumn("teacher", ("t",)),
    )


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
