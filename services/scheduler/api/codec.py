"""Between the scheduler's values and the contracts' messages. Nothing here decides."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

from earl.config.run import RunConfig
from earl.errors import LedgerError
from earl.ticket_ranges import RangeSet
from earl.v1 import common_pb2, scheduler_pb2
from services.scheduler.batches.batch_plan import BatchPlan
from services.scheduler.batches.columns import ColumnProgress
from services.scheduler.journal.events import ENDINGS, PURPOSES
from services.scheduler.monitor.length_sketch import Quantiles
from services.scheduler.state.records import (
    Attempt,
    EpisodeEnding,
    Purpose,
    Result,
    Ticket,
    TicketState,
    TicketVerdict,
    WorkerRecord,
)

MESSAGE_CHARACTERS = 500
METRICS = 64
TURNS = 4096
RANGES = 1_000_000

VERDICTS = {
    TicketVerdict.ACCEPTED: scheduler_pb2.VERDICT_ACCEPTED,
    TicketVerdict.RETRIED: scheduler_pb2.VERDICT_RETRIED,
    TicketVerdict.REFUSED: scheduler_pb2.VERDICT_REFUSED,
}


class TicketEncoder:
    """Encodes tickets with what they all share: environment, task, bounds."""

    def __init__(self, config: RunConfig) -> None:
        self._environment = config.environment.name
        self._task_json = json.dumps(config.environment.task, sort_keys=True)
        self._scheduler = config.scheduler

    def encode(self, ticket: Ticket, traceparent: str = "") -> scheduler_pb2.Ticket:
        scripted = ticket.purpose is Purpose.WARMUP
        return scheduler_pb2.Ticket(
            ticket_id=ticket.id,
            attempt=ticket.attempt,
            fence=ticket.fence,
            purpose=PURPOSES[ticket.purpose],
            actor=common_pb2.ACTOR_RANDOM_LEGAL if scripted else common_pb2.ACTOR_POLICY,
            group_id=ticket.group,
            environment=self._environment,
            task_json=self._task_json,
            env_seed=ticket.env_seed,
            sample_seed=ticket.sample_seed,
            min_version=ticket.min_version,
            temperature=ticket.temperature,
            episode_s=self._scheduler.episode_s,
            lease_s=self._scheduler.lease_s,
            max_turns=self._scheduler.max_turns,
            evaluation=ticket.evaluation,
            transcript=ticket.transcript,
            traceparent=traceparent,
        )


def decode_member(request: scheduler_pb2.JoinRequest) -> WorkerRecord:
    """Raises LedgerError for a worker without a name."""
    if not request.worker.name or len(request.worker.name) > 128:
        raise LedgerError(f"worker name {request.worker.name[:140]!r} is empty or too long", "mend it")
    parallelism = request.parallelism
    return WorkerRecord(
        name=request.worker.name,
        incarnation=request.worker.incarnation,
        stage=request.worker.stage,
        address=request.worker.address,
        capacity=request.capacity,
        parallelism=(parallelism.dp or 1, parallelism.tp or 1, parallelism.cp or 1, parallelism.pp or 1),
    )


def decode_attempt(ref: scheduler_pb2.AttemptRef) -> Attempt:
    return Attempt(ref.ticket_id, ref.attempt, ref.fence)


def encode_attempt(attempt: Attempt) -> scheduler_pb2.AttemptRef:
    return scheduler_pb2.AttemptRef(ticket_id=attempt.ticket_id, attempt=attempt.attempt, fence=attempt.fence)


def decode_result(result: scheduler_pb2.AttemptResult) -> Result:
    """Unknown endings count as INFRA_ERROR; metrics that are no number are left out."""
    metrics = sorted((name, value) for name, value in result.metrics.items() if math.isfinite(value))
    message = result.message
    return Result(
        ending=ENDINGS.get(result.ending, EpisodeEnding.INFRA_ERROR),
        reward=result.reward,
        prompt_tokens=result.prompt_tokens,
        total_tokens=result.total_tokens,
        trained_tokens=result.trained_tokens,
        turns=result.turns,
        oldest_version=result.oldest_version,
        newest_version=max(result.oldest_version, result.newest_version),
        descriptor_key=result.descriptor_key,
        metrics=dict(metrics[:METRICS]),
        message=" ".join(message.split())[:MESSAGE_CHARACTERS] if message else "",
        turn_tokens=list(result.turn_tokens[:TURNS]),
    )


def decode_ranges(ranges: Iterable[scheduler_pb2.TicketRange]) -> RangeSet:
    """Raises LedgerError for a range that is none."""
    pairs = [(ticket_range.start, ticket_range.stop) for ticket_range in ranges]
    if len(pairs) > RANGES:
        raise LedgerError(f"{len(pairs)} ranges of consumed tickets", f"join them; {RANGES} are allowed")
    for start, stop in pairs:
        if not 0 < start < stop:
            raise LedgerError(f"[{start}, {stop}) is no range of tickets", "1 <= start < stop")
    return RangeSet(pairs)


def encode_plan(plan: BatchPlan) -> scheduler_pb2.BatchPlan:
    batch = plan.batch
    imitate = batch.purpose is Purpose.WARMUP
    message = scheduler_pb2.BatchPlan(
        batch_id=batch.id,
        version=batch.version,
        objective=(scheduler_pb2.OBJECTIVE_IMITATE if imitate else scheduler_pb2.OBJECTIVE_POLICY_GRADIENT),
        total_tokens=plan.total_tokens,
        trained_tokens=plan.trained_tokens,
        publish=batch.publish,
        checkpoint=batch.checkpoint,
        progress=batch.progress,
        first_of_phase=batch.first_of_phase,
    )
    for items in plan.ranks:
        rank = message.ranks.add()
        for item in items:
            rank.items.add(
                position=item.position,
                ticket_id=item.ticket_id,
                attempt=item.attempt,
                descriptor_key=item.descriptor_key,
                advantage=item.advantage,
                total_tokens=item.total_tokens,
                start_token=0,
                stop_token=item.total_tokens,
                group_id=item.group,
                reward=item.reward,
                reference_keys=item.reference.keys,
                reference_offset=item.reference.offset,
            )
    return message


def encode_counts(counts: Mapping[str, int], issued: int) -> scheduler_pb2.LedgerCounts:
    prefix = "dropped:"
    return scheduler_pb2.LedgerCounts(
        issued=issued,
        trained=counts.get(TicketState.TRAINED, 0),
        evaluated=counts.get(TicketState.EVALUATED, 0),
        dropped={
            name.removeprefix(prefix): count for name, count in counts.items() if name.startswith(prefix)
        },
        pending=counts.get(TicketState.PENDING, 0),
        leased=counts.get(TicketState.LEASED, 0),
        ready=counts.get(TicketState.READY, 0),
        planned=counts.get(TicketState.PLANNED, 0),
    )


def encode_progress(roles: Mapping[str, ColumnProgress]) -> list[scheduler_pb2.RoleProgress]:
    return [
        scheduler_pb2.RoleProgress(
            role=name, waiting=progress.waiting, leased=progress.leased, done=progress.done
        )
        for name, progress in roles.items()
    ]


def encode_quantiles(quantiles: Quantiles) -> scheduler_pb2.LengthQuantiles:
    return scheduler_pb2.LengthQuantiles(
        mean=quantiles.mean, p50=quantiles.p50, p95=quantiles.p95, max=quantiles.max
    )
