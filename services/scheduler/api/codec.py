"""Between the scheduler's values and the contracts' messages. Nothing here decides."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from msgspec.structs import asdict

from earl.config.mixture import MixtureEntry, entry_of
from earl.config.run import RunConfig
from earl.config.task_set import TaskSet
from earl.episode_contract import one_line
from earl.errors import LedgerError
from earl.message_fields import fill, from_message, to_message
from earl.parallelism import NUMBERED_STAGES, Parallelism
from earl.parallelism_codec import decode_parallelism
from earl.recorded_episodes import RecordedTurn
from earl.rpc.options import MAX_MESSAGE_BYTES
from earl.ticket_ranges import RangeSet
from earl.v1 import common_pb2, scheduler_pb2
from earl.worker_report import LiveSequence, WorkerDevice
from services.scheduler.batches.batch_plan import BatchPlan
from services.scheduler.codec_numbers import ENDINGS, PURPOSES
from services.scheduler.ledger.evaluation import FINAL
from services.scheduler.state.device_move import DeviceMove, by_stage
from services.scheduler.state.recorded_schedule import RecordedSchedule
from services.scheduler.state.tickets import (
    Attempt,
    EpisodeEnding,
    EpisodeResult,
    Purpose,
    Ticket,
    TicketVerdict,
)
from services.scheduler.state.workers import WorkerRecord

METRICS = 64
TURNS = 4096
DEVICES = 1024
SEQUENCES = 16_384
RANGES = 1_000_000

# Fields of a result that are taken as they are.
REPORTED = (
    "reward", "prompt_tokens", "total_tokens", "trained_tokens", "turns", "oldest_version", "descriptor_key",
)  # fmt: skip
VERDICTS = {verdict: scheduler_pb2.Verdict.Value(f"VERDICT_{verdict.name}") for verdict in TicketVerdict}


class TicketEncoder:
    """Encodes tickets with what their environment and the run say of them: task, bounds."""

    def __init__(
        self,
        config: RunConfig,
        task_sets: Mapping[str, TaskSet],
        recorded: RecordedSchedule | None = None,
    ) -> None:
        """recorded: the episodes that the warm-up imitates; None if it plays."""
        self._recorded = recorded
        self._records = config.evaluation.record
        self._entries = config.mixture
        # "" is the label in tickets of a run that has one environment.
        self._by_label = {"": self._entries[0]} | {entry.label: entry for entry in self._entries}
        self._rows = {label: tasks.rows for label, tasks in task_sets.items() if tasks.rows}
        self._tasks = {entry.label: json.dumps(entry.task, sort_keys=True) for entry in self._entries}
        self._lease_s, self._episode_s = config.scheduler.lease_s, config.episode_s
        self._frozen = config.frozen
        self._pins = config.pinned is not None
        filters = config.evaluation.filters
        self._filters = scheduler_pb2.SamplingFilters(**dataclasses.asdict(filters)) if filters else None
        longest = max((len(row) for rows in self._rows.values() for row in rows), default=0)
        # The most episodes of one message, which the tasks of their tickets may fill to a quarter.
        each = max(longest + max(map(len, self._tasks.values())), 1) + (recorded.longest if recorded else 0)
        self.most = MAX_MESSAGE_BYTES // 4 // each // max(entry.seats for entry in self._entries)

    def encode(
        self, ticket: Ticket, traceparent: str = "", engine: int | None = None
    ) -> scheduler_pb2.Ticket:
        """engine: that it is planned for; None if any will do."""
        scripted = ticket.purpose is Purpose.WARMUP
        entry = self._by_label.get(ticket.environment) or entry_of(self._entries, ticket.environment)
        episode = self._recorded.episode(ticket) if self._recorded is not None else None
        turns = episode.turns if episode is not None else ()
        return scheduler_pb2.Ticket(
            ticket_id=ticket.id,
            attempt=ticket.attempt,
            fence=ticket.fence,
            purpose=PURPOSES[ticket.purpose],
            actor=common_pb2.ACTOR_RANDOM_LEGAL if scripted else common_pb2.ACTOR_POLICY,
            group_id=ticket.group,
            environment=entry.name,
            label=entry.label,
            task_json=self._task_json(entry, ticket),
            env_seed=ticket.env_seed,
            sample_seed=ticket.sample_seed,
            min_version=ticket.min_version,
            temperature=ticket.temperature,
            episode_s=self._episode_s,
            lease_s=self._lease_s,
            max_turns=entry.max_turns,
            evaluation=ticket.evaluation,
            transcript=ticket.transcript,
            traceparent=traceparent,
            seat=ticket.seat,
            seats=ticket.seats if ticket.seats > 1 else 0,
            frozen_version=ticket.opponent(self._frozen),
            filters=self._filters if ticket.purpose is Purpose.EVALUATE else None,
            pinned_version=ticket.min_version if self._pins and not scripted else 0,
            recorded=[scheduler_pb2.RecordedTurn(observed=turn.observed, acted=turn.acted) for turn in turns],
            recorded_reward=episode.reward if episode is not None else 0.0,
            record=self._records and ticket.evaluation == FINAL,
            engine=engine,
        )

    def _task_json(self, entry: MixtureEntry, ticket: Ticket) -> str:
        """The task of the run file, the ticket's row over it, if there is one, the evaluation's over both."""
        laid: dict[str, Any] = {}
        rows = self._rows.get(entry.label, ())
        if 0 <= ticket.task < len(rows):
            laid |= json.loads(rows[ticket.task])
        # Training's tasks are recorded; of a match an evaluation plays one seat, against its own opponent.
        if ticket.purpose is Purpose.EVALUATE and (entry.seats > 1 or not self._records):
            laid |= entry.evaluation_task(ticket.index // len(self._entries))
        return json.dumps(entry.task | laid) if laid else self._tasks[entry.label]


def decode_worker(request: scheduler_pb2.JoinRequest) -> WorkerRecord:
    """The worker that joins. Raises LedgerError for a worker without a name."""
    if not request.worker.name or len(request.worker.name) > 128:
        raise LedgerError(
            f"worker name {request.worker.name[:140]!r} is empty or too long",
            "give it a name of 1 to 128 characters",
        )
    parallelism = decode_parallelism(request.parallelism)
    return WorkerRecord(
        name=request.worker.name,
        incarnation=request.worker.incarnation,
        stage=request.worker.stage,
        address=request.worker.address,
        capacity=request.capacity,
        parallelism=(parallelism.dp, *parallelism.replica),
        devices=decode_devices(request.devices),
    )


def decode_devices(messages: Iterable[scheduler_pb2.WorkerDevice]) -> tuple[WorkerDevice, ...]:
    """The first DEVICES of a worker's devices."""
    return tuple(from_message(WorkerDevice, message) for message in islice(messages, DEVICES))


def decode_sequences(messages: Iterable[scheduler_pb2.LiveSequence]) -> list[LiveSequence]:
    """The first SEQUENCES of a worker's sequences."""
    return [from_message(LiveSequence, message) for message in islice(messages, SEQUENCES)]


def decode_attempt(ref: scheduler_pb2.AttemptRef) -> Attempt:
    return Attempt(ref.ticket_id, ref.attempt, ref.fence)


def encode_attempt(attempt: Attempt) -> scheduler_pb2.AttemptRef:
    return scheduler_pb2.AttemptRef(ticket_id=attempt.ticket_id, attempt=attempt.attempt, fence=attempt.fence)


def decode_result(result: scheduler_pb2.AttemptResult) -> EpisodeResult:
    """Unknown endings count as INFRA_ERROR; metrics that are no number are left out."""
    metrics = sorted((name, value) for name, value in result.metrics.items() if math.isfinite(value))
    message = result.message
    return EpisodeResult(
        ending=ENDINGS.get(result.ending, EpisodeEnding.INFRA_ERROR),
        newest_version=max(result.oldest_version, result.newest_version),
        metrics=dict(metrics[:METRICS]),
        message=one_line(message) if message else "",
        turn_tokens=list(result.turn_tokens[:TURNS]),
        **{name: getattr(result, name) for name in REPORTED},
    )


def decode_recorded(result: scheduler_pb2.AttemptResult) -> list[RecordedTurn]:
    """The turns in token ids that a recording ticket asked for; empty for every other."""
    return [RecordedTurn(list(turn.observed), list(turn.acted)) for turn in result.recorded[:TURNS]]


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
        objective=scheduler_pb2.OBJECTIVE_IMITATE if imitate else scheduler_pb2.OBJECTIVE_POLICY_GRADIENT,
        total_tokens=plan.total_tokens,
        trained_tokens=plan.trained_tokens,
        teacher_weight=plan.teacher_weight,
    )
    fill(message, batch)
    for start, stop in plan.kept:
        message.kept.add(start=start, stop=stop)
    for items in plan.ranks:
        rank = message.ranks.add()
        for item in items:
            columns = [scheduler_pb2.RoleColumn(**asdict(column)) for column in item.columns]
            rank.items.add(stop_token=item.total_tokens, **{**asdict(item), "columns": columns})
    return message


def decode_stage(number: common_pb2.Stage) -> str:
    """The stage's name. Raises LedgerError for a number that no stage has."""
    if not 1 <= number <= len(NUMBERED_STAGES):
        raise LedgerError(f"stage {number} is none", f"name one of {', '.join(NUMBERED_STAGES)}")
    return NUMBERED_STAGES[number - 1]


def decode_request(request: scheduler_pb2.SetParallelismRequest) -> tuple[int, Parallelism] | None:
    """(dp, or 0 if it was left open; one replica) that an operator asks for; None to change only the pin."""
    return decode_wish(request.parallelism) if request.HasField("parallelism") else None


def decode_wish(parallelism: common_pb2.Parallelism) -> tuple[int, Parallelism]:
    """(dp, or 0 if it was left open; one replica) of a parallelism that an operator asks for."""
    return parallelism.dp, Parallelism(1, *decode_parallelism(parallelism).replica)


def decode_layouts(request: scheduler_pb2.MoveDevicesRequest) -> dict[str, tuple[int, Parallelism]]:
    """The layouts that giver and taker are to have after a move, by stage: each as decode_wish has it."""
    wishes = (("giver_layout", request.giver), ("taker_layout", request.taker))
    return {
        decode_stage(stage): decode_wish(getattr(request, name))
        for name, stage in wishes
        if request.HasField(name)
    }


def encode_move(move: DeviceMove) -> scheduler_pb2.DeviceMove:
    divisions = {
        name: scheduler_pb2.DeviceSplit(**by_stage(division))
        for name, division in (("before", move.before), ("after", move.after), ("holds", move.holds))
    }
    layouts = {stage: str(layout) for stage, layout in move.held_layouts.items()}
    return to_message(scheduler_pb2.DeviceMove, move, phase=move.phase.value, layouts=layouts, **divisions)
