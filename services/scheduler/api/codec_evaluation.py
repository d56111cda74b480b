"""Evaluations and conversations ↔ the contracts' messages. Nothing here decides."""

from __future__ import annotations

import math
from collections.abc import Iterable

from earl.transcript import TOKEN_BYTES, TOKENS, TURNS, Sampled, Turn, shortened
from earl.v1 import events_pb2, scheduler_pb2
from services.scheduler.ledger.evaluation import Judgement, judge
from services.scheduler.state.records import EvaluationRecord

ROLE_CHARACTERS = 32


def encode_evaluations(
    judged: Iterable[tuple[EvaluationRecord, Judgement]],
) -> list[scheduler_pb2.EvaluationResult]:
    """In the same order."""
    return [encode_evaluation(evaluation, judgement) for evaluation, judgement in judged]


def encode_evaluation(evaluation: EvaluationRecord, judgement: Judgement) -> scheduler_pb2.EvaluationResult:
    """Figures of an evaluation without an episode done are 0, bounds of a single episode's reward NaN."""
    message = scheduler_pb2.EvaluationResult(
        name=evaluation.name,
        version=evaluation.version,
        episodes=evaluation.episodes,
        done=evaluation.done,
        failed=evaluation.failed,
        metrics=evaluation.metrics,
    )
    if evaluation.done:
        reward, wins = judgement.reward, judgement.win_rate
        message.mean_reward, message.reward_low, message.reward_high = reward.value, reward.low, reward.high
        message.win_rate, message.win_low, message.win_high = wins.value, wins.low, wins.high
    if judgement.gain is not None:
        gain = judgement.gain
        message.gain, message.gain_episodes = gain.value, judgement.pairs
        if judgement.pairs > 1:
            message.gain_low, message.gain_high = gain.low, gain.high
    return message


def encode_done(evaluation: EvaluationRecord, baseline: EvaluationRecord | None) -> events_pb2.EvaluationDone:
    """The bus event; the bounds and the gain are among its metrics."""
    message = encode_evaluation(evaluation, judge(evaluation, baseline))
    names = ["reward_low", "reward_high", "win_low", "win_high"]
    names += [name for name in ("gain", "gain_low", "gain_high") if message.HasField(name)]
    numbers = {name: getattr(message, name) for name in names}
    return events_pb2.EvaluationDone(
        name=message.name,
        version=message.version,
        episodes=message.episodes,
        mean_reward=message.mean_reward,
        win_rate=message.win_rate,
        metrics={
            **dict(message.metrics),
            **{name: value for name, value in numbers.items() if math.isfinite(value)},
        },
    )


def decode_transcript(result: scheduler_pb2.AttemptResult) -> tuple[Turn, ...]:
    """The conversation within TURNS turns of TEXT_BYTES; empty if there was none."""
    if not result.transcript:
        return ()
    return tuple(
        Turn(turn.role[:ROLE_CHARACTERS], shortened(turn.text), turn.tokens, decode_sampled(turn))
        for turn in result.transcript[:TURNS]
    )


def decode_sampled(turn: scheduler_pb2.TranscriptTurn) -> tuple[Sampled, ...]:
    """The first TOKENS that are numbers throughout."""
    return tuple(
        Sampled(one.id, shortened(one.text, TOKEN_BYTES), one.logprob, one.version)
        for one in turn.sampled[:TOKENS]
        if math.isfinite(one.logprob)
    )
