"""Facts of the ledger as events of the bus."""

from __future__ import annotations

import pytest

from earl.parallelism import STAGES
from earl.v1 import common_pb2
from services.scheduler.codec_numbers import ENDING_NUMBERS, ENDINGS, PURPOSES, STAGE_NUMBERS
from services.scheduler.journal.events import encode_fact
from services.scheduler.state.facts import (
    BatchCommitted,
    BatchPlanned,
    TrajectoryReady,
    WorkerJoined,
    WorkerLeft,
)
from services.scheduler.state.switch_records import By, SwitchEnded, SwitchRecord
from services.scheduler.state.tickets import EpisodeEnding, EpisodeResult, Purpose
from services.scheduler.state.workers import WorkerRecord

WORKER = WorkerRecord(name="rollout-0", incarnation=5, stage=common_pb2.STAGE_ROLLOUT, address="a:1")


@pytest.mark.parametrize("ending", EpisodeEnding)
@pytest.mark.parametrize("purpose", Purpose)
def test_a_trajectory_is_stated_with_its_ending_and_its_purpose(purpose: Purpose, ending: EpisodeEnding):
    result = EpisodeResult(
        descriptor_key="t/3/2", reward=-0.5, prompt_tokens=4, total_tokens=9, oldest_version=1,
        newest_version=2, turns=3, ending=ending,
    )  # fmt: skip
    ready = encode_fact(TrajectoryReady(3, 2, "rollout-0", purpose, result)).trajectory_ready
    assert (ready.ticket_id, ready.attempt, ready.worker) == (3, 2, "rollout-0")
    assert (ready.descriptor_key, ready.reward, ready.turns) == ("t/3/2", -0.5, 3)
    assert (ready.prompt_tokens, ready.total_tokens) == (4, 9)
    assert (ready.oldest_version, ready.newest_version) == (1, 2)
    assert common_pb2.Purpose.Name(ready.purpose) == f"PURPOSE_{purpose.name}"
    assert common_pb2.Ending.Name(ready.ending) == f"ENDING_{ending.name}"


def test_a_trajectory_names_its_environment_its_task_and_its_seat():
    fact = TrajectoryReady(3, 2, "w", Purpose.TRAIN, EpisodeResult(), "relay/digits", 0, 1 << 63, 1)
    ready = encode_fact(fact).trajectory_ready
    assert (ready.environment, ready.HasField("task"), ready.task) == ("relay/digits", True, 0)
    assert (ready.env_seed, ready.seat) == (1 << 63, 1)
    without = encode_fact(TrajectoryReady(3, 2, "w", Purpose.TRAIN, EpisodeResult())).trajectory_ready
    assert without.environment == "" and not without.HasField("task")


def test_purposes_and_endings_have_numbers_of_their_own():
    assert len(set(PURPOSES.values())) == len(Purpose)
    assert {ENDINGS[number] for number in ENDING_NUMBERS.values()} == set(EpisodeEnding)


def test_the_contract_numbers_the_stages_in_their_order():
    workers = [WorkerRecord(name="w", incarnation=1, stage=STAGE_NUMBERS[stage]) for stage in STAGES]
    assert tuple(worker.stage_name for worker in workers) == STAGES
    assert WorkerRecord(name="w", incarnation=1, stage=common_pb2.STAGE_UNSPECIFIED).stage_name == ""


def test_batches_are_stated():
    planned = encode_fact(BatchPlanned(batch_id=4, version=3, sequences=16, tokens=99)).batch_planned
    assert (planned.batch_id, planned.version, planned.sequences, planned.tokens) == (4, 3, 16, 99)
    committed = encode_fact(BatchCommitted(4, 4, ("t/1/1", "t/2/1"))).batch_committed
    assert (committed.batch_id, committed.version) == (4, 4)
    assert list(committed.descriptor_keys) == ["t/1/1", "t/2/1"]


def test_workers_are_stated_as_they_come_and_go():
    joined = encode_fact(WorkerJoined(WORKER)).worker_joined.worker
    left = encode_fact(WorkerLeft(WORKER, "its lease ended")).worker_left
    assert joined == left.worker and left.reason == "its lease ended"
    assert (joined.name, joined.incarnation, joined.stage) == ("rollout-0", 5, common_pb2.STAGE_ROLLOUT)


def test_a_switch_is_stated_with_both_layouts_and_its_stall():
    switch = SwitchRecord(
        epoch=2, before=(2, 1, 1, 1), after=(1, 2, 1, 1), by=By.OPERATOR, reason="asked", stall_s=0.5
    )
    changed = encode_fact(SwitchEnded("rollout", switch)).parallelism_changed
    assert (changed.stage, changed.epoch, changed.reason) == (common_pb2.STAGE_ROLLOUT, 2, "asked")
    assert (changed.before.dp, changed.before.tp, changed.after.dp, changed.after.tp) == (2, 1, 1, 2)
    assert changed.figures.stall_s == 0.5
