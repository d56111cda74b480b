"""A worker's heartbeat, from its message to what operators are shown of it."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from earl.parallelism import Parallelism
from earl.parallelism_codec import encode_parallelism
from earl.v1 import scheduler_pb2
from earl.worker_report import LiveSequence, SequenceMove
from services.scheduler.api.codec_status import encode_worker_view
from services.scheduler.api.servicer import SchedulerServicer
from services.scheduler.monitor.workers import WorkerReport
from services.scheduler.state.workers import WorkerRecord
from services.scheduler.status import WorkerView
from tests.support.runs import tictactoe


async def reported(tmp_path: Path, **gauges: float) -> WorkerReport:
    """The report that the scheduler gets of a trainer's heartbeat."""
    heartbeat = Mock(return_value=(False, 0.0))
    scheduler: Any = SimpleNamespace(
        config=tictactoe(tmp_path), task_sets={}, recorded=None, heartbeat=heartbeat, heartbeat_s=1.0
    )
    request = scheduler_pb2.HeartbeatRequest(gauges=gauges)
    request.worker.name, request.worker.incarnation = "trainer", 3
    await SchedulerServicer(scheduler).Heartbeat(request, None)
    return heartbeat.call_args.args[1]


async def test_the_part_of_a_batch_that_is_trained_is_none_of_the_gauges_that_are_shown(tmp_path: Path):
    report = await reported(tmp_path, train_s=2.0, train_fraction=0.25)
    assert report.train_fraction == 0.25
    shown = encode_worker_view(WorkerView(WorkerRecord(name="trainer", incarnation=3), report, 0.0))
    assert dict(shown.gauges) == {"train_s": 2.0}


async def test_a_worker_whose_sequences_may_move_is_told_where(tmp_path: Path):
    moves = Mock(return_value=[SequenceMove("7/1", 1)])
    scheduler: Any = SimpleNamespace(
        config=tictactoe(tmp_path), task_sets={}, recorded=None, heartbeat=Mock(return_value=(False, 0.0)),
            heartbeat_s=1.0,
        may_move=Mock(return_value=True), moves=moves,
    )  # fmt: skip
    request = scheduler_pb2.HeartbeatRequest()
    request.parallelism.CopyFrom(encode_parallelism(Parallelism(dp=2)))
    request.sequences.add(session="7/1", ticket_id=7, engine=0, context_tokens=90, response_tokens=60)
    response = await SchedulerServicer(scheduler).Heartbeat(request, None)
    moves.assert_called_once_with(Parallelism(dp=2), [LiveSequence("7/1", 7, 0, 90, 60)])
    assert [(move.session, move.engine) for move in response.moves] == [("7/1", 1)]
    scheduler.may_move.return_value = False
    assert not (await SchedulerServicer(scheduler).Heartbeat(request, None)).moves
    moves.assert_called_once()


async def test_numbers_that_are_none_are_left_out(tmp_path: Path):
    report = await reported(tmp_path, train_s=math.inf, train_fraction=math.nan)
    assert report.gauges == {} and report.train_fraction is None
