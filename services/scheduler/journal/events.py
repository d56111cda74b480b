"""The ledger's facts as events of the bus, and the messages that events and answers share."""

from __future__ import annotations

import math

from earl.message_fields import fill
from earl.parallelism_codec import encode_parallelism, put_figures
from earl.v1 import events_pb2, scheduler_pb2
from services.scheduler.codec_numbers import ENDING_NUMBERS, PURPOSES, STAGE_NUMBERS
from services.scheduler.ledger.evaluation import Judgement, environment_figures, judge
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.facts import (
    BatchCommitted,
    BatchPlanned,
    EvaluationDone,
    Fact,
    TrajectoryReady,
    WorkerJoined,
    WorkerLeft,
)
from services.scheduler.state.switch_records import SwitchEnded, SwitchRecord


def encode_fact(fact: Fact) -> events_pb2.Event:
    """The bus event that states a fact of the ledger."""
    event = events_pb2.Event()
    match fact:
        case TrajectoryReady(ticket_id, attempt, worker, purpose, result, environment, task, env_seed, seat):
            # Field by field in place: this is done once for every episode of the run.
            ready = event.trajectory_ready
            ready.ticket_id, ready.attempt, ready.worker = ticket_id, attempt, worker
            ready.descriptor_key, ready.reward = result.descriptor_key, result.reward
            ready.prompt_tokens, ready.total_tokens = result.prompt_tokens, result.total_tokens
            ready.oldest_version, ready.newest_version = result.oldest_version, result.newest_version
            ready.ending, ready.purpose = ENDING_NUMBERS[result.ending], PURPOSES[purpose]
            ready.turns = result.turns
            ready.environment, ready.env_seed, ready.seat = environment, env_seed, seat
            if task >= 0:
                ready.task = task
        case BatchPlanned():
            fill(event.batch_planned, fact)
        case BatchCommitted():
            fill(event.batch_committed, fact)
        case EvaluationDone(evaluation, baseline):
            event.evaluation_done.CopyFrom(encode_done(evaluation, baseline))
        case WorkerJoined(worker):
            fill(event.worker_joined.worker, worker)
        case WorkerLeft(worker, reason):
            fill(event.worker_left.worker, worker)
            event.worker_left.reason = reason
        case SwitchEnded():
            event.parallelism_changed.CopyFrom(encode_changed(fact))
    return event


def encode_evaluation(evaluation: EvaluationRecord, judgement: Judgement) -> scheduler_pb2.EvaluationResult:
    """Figures of an evaluation without an episode done are 0, bounds of a single episode's reward NaN."""
    message = fill(scheduler_pb2.EvaluationResult(), evaluation)
    if evaluation.done:
        reward, wins = judgement.reward, judgement.win_rate
        message.mean_reward, message.reward_low, message.reward_high = reward.value, reward.low, reward.high
        message.win_rate, message.win_low, message.win_high = wins.value, wins.low, wins.high
    if judgement.gain is not None:
        gain = judgement.gain
        message.gain, message.gain_episodes = gain.value, judgement.pairs
        if judgement.pairs > 1:
            message.gain_low, message.gain_high = gain.low, gain.high
    message.metrics.update(environment_figures(judgement))
    return message


def encode_done(evaluation: EvaluationRecord, baseline: EvaluationRecord | None) -> events_pb2.EvaluationDone:
    """The bus event; the bounds and the gain are among its metrics."""
    message = encode_evaluation(evaluation, judge(evaluation, baseline))
    names = ["reward_low", "reward_high", "win_low", "win_high"]
    names += [name for name in ("gain", "gain_low", "gain_high") if message.HasField(name)]
    numbers = {name: getattr(message, name) for name in names}
    done = fill(events_pb2.EvaluationDone(), message)
    done.metrics.update((name, value) for name, value in numbers.items() if math.isfinite(value))
    return done


def encode_switch(switch: SwitchRecord) -> scheduler_pb2.Switch:
    message = scheduler_pb2.Switch()
    _put_switch(switch, message)
    return message


def encode_changed(fact: SwitchEnded) -> events_pb2.ParallelismChanged:
    message = events_pb2.ParallelismChanged(stage=STAGE_NUMBERS[fact.stage])
    _put_switch(fact.switch, message)
    return message


def _put_switch(switch: SwitchRecord, message: scheduler_pb2.Switch | events_pb2.ParallelismChanged) -> None:
    fill(message, switch, without=("before", "after", "figures"))
    message.before.CopyFrom(encode_parallelism(switch.former))
    message.after.CopyFrom(encode_parallelism(switch.target))
    put_figures(switch, message)
