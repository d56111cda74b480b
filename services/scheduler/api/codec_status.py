"""The scheduler's status as a message. Nothing here decides."""

from __future__ import annotations

from collections.abc import Mapping

from earl.message_fields import fill
from earl.parallelism import Parallelism
from earl.parallelism_codec import encode_parallelism
from earl.v1 import scheduler_pb2
from services.scheduler.api.codec import encode_move
from services.scheduler.codec_numbers import STAGE_NUMBERS
from services.scheduler.journal.events import encode_evaluation, encode_switch
from services.scheduler.monitor.workers import WorkerReport
from services.scheduler.state.tickets import TicketState
from services.scheduler.status import SchedulerStatus, StageView, WorkerView

DROPPED = f"{TicketState.DROPPED}:"


def encode_status(status: SchedulerStatus) -> scheduler_pb2.GetStatusResponse:
    response = fill(scheduler_pb2.GetStatusResponse(), status, without=("move",))
    if status.move is not None:
        response.move.CopyFrom(encode_move(status.move))
    response.ledger.CopyFrom(encode_counts(status.counts, status.issued))
    response.workers.extend(map(encode_worker_view, status.worker_views))
    response.evaluations.extend(encode_evaluation(*judged) for judged in status.judged)
    for role, progress in status.progress.items():
        fill(response.roles.add(role=role), progress)
    response.stages.extend(map(encode_stage_view, status.stage_views))
    return response


def encode_counts(counts: Mapping[str, int], issued: int) -> scheduler_pb2.LedgerCounts:
    """counts: tickets by state, and of those that were dropped by reason."""
    dropped = {
        name.removeprefix(DROPPED): count for name, count in counts.items() if name.startswith(DROPPED)
    }
    states = {name: count for name, count in counts.items() if not name.startswith(DROPPED)}
    return scheduler_pb2.LedgerCounts(issued=issued, dropped=dropped, **states)


def encode_worker_view(view: WorkerView) -> scheduler_pb2.WorkerStatus:
    worker, report = view.worker, view.report or WorkerReport(view.worker.incarnation, 0.0)
    message = fill(scheduler_pb2.WorkerStatus(silent_s=view.silent_s), report)
    fill(message.worker, worker)
    message.capacity = worker.capacity
    message.parallelism.CopyFrom(encode_parallelism(Parallelism(*worker.parallelism)))
    return message


def encode_stage_view(view: StageView) -> scheduler_pb2.StageStatus:
    record, verdict = view.record, view.verdict
    message = scheduler_pb2.StageStatus(
        stage=STAGE_NUMBERS[view.name],
        pinned=record.pinned,
        epoch=record.epoch,
        running=view.running and encode_parallelism(view.running),
        switching=record.switch and encode_switch(record.switch),
        last=record.last and encode_switch(record.last),
    )
    if verdict is not None:
        message.chosen.CopyFrom(encode_parallelism(verdict.chosen))
        message.step, message.sentence = verdict.decision.step, verdict.sentence
    return message
