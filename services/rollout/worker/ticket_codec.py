"""Between the scheduler's messages about tickets and the worker's values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from earl.config.sampling_filters import SamplingFilters
from earl.episode_contract import one_line
from earl.obs.tracing import checked
from earl.recorded_episodes import RecordedTurn
from earl.v1 import common_pb2, scheduler_pb2
from services.rollout.worker.ticket import EpisodeOutcome, EpisodeTicket

_SAME = {field.name for field in fields(EpisodeTicket)} - {
    "publish", "scripted", "traceparent", "others", "session_seats", "filters", "recorded",
    "engine",
}  # fmt: skip
_FILTERS = [field.name for field in fields(SamplingFilters)]


def decode_episodes(tickets: Sequence[scheduler_pb2.Ticket]) -> list[EpisodeTicket]:
    """The episodes of a message, in which the tickets of a match follow one another from seat 0 on.

    A match against a frozen version has one ticket, of any seat.
    """
    episodes: list[list[EpisodeTicket]] = []
    for ticket in tickets:
        if not ticket.seat or ticket.frozen_version:
            episodes.append([])
        episodes[-1].append(decode_ticket(ticket))
    return [replace(first, others=tuple(others)) for first, *others in episodes]


def decode_ticket(ticket: scheduler_pb2.Ticket) -> EpisodeTicket:
    """The ticket of a message. Fields of one name hold the same, but for those named here."""
    return EpisodeTicket(
        publish=ticket.purpose != common_pb2.PURPOSE_EVALUATE,
        scripted=ticket.actor == common_pb2.ACTOR_RANDOM_LEGAL,
        traceparent=checked(ticket.traceparent),
        session_seats=ticket.seats or 1,
        engine=ticket.engine if ticket.HasField("engine") else None,
        filters=_filters(ticket) if ticket.HasField("filters") else SamplingFilters(),
        recorded=[RecordedTurn(list(turn.observed), list(turn.acted)) for turn in ticket.recorded],
        **{name: getattr(ticket, name) for name in _SAME},
    )


def _filters(ticket: scheduler_pb2.Ticket) -> SamplingFilters:
    return SamplingFilters(**{name: getattr(ticket.filters, name) for name in _FILTERS})


def encode_ref(ticket: EpisodeTicket) -> scheduler_pb2.AttemptRef:
    return scheduler_pb2.AttemptRef(ticket_id=ticket.ticket_id, attempt=ticket.attempt, fence=ticket.fence)


def encode_result(
    ticket: EpisodeTicket, outcome: EpisodeOutcome, descriptor_key: str
) -> scheduler_pb2.AttemptResult:
    """descriptor_key: where the columns can be read; empty if they are not published."""
    columns = outcome.columns
    turns = columns.turns_read_and_written() if ticket.record and outcome.trainable else ()
    return scheduler_pb2.AttemptResult(
        attempt=encode_ref(ticket),
        ending=f"ENDING_{outcome.ending.name}",  # the names are the same
        reward=outcome.reward if outcome.trainable else 0.0,
        prompt_tokens=columns.prompt_tokens,
        total_tokens=len(columns),
        trained_tokens=columns.trained_tokens,
        turns=len(columns.turn_tokens),
        oldest_version=columns.oldest_version,
        newest_version=columns.newest_version,
        descriptor_key=descriptor_key,
        metrics=outcome.metrics,
        message=one_line(outcome.message),
        turn_tokens=columns.turn_tokens,
        transcript=[
            scheduler_pb2.TranscriptTurn(
                role=turn.role,
                text=turn.text,
                tokens=turn.tokens,
                sampled=[
                    scheduler_pb2.SampledToken(
                        id=token.id, text=token.text, logprob=token.logprob, version=token.version
                    )
                    for token in turn.sampled
                ],
            )
            for turn in outcome.transcript
        ],
        recorded=[scheduler_pb2.RecordedTurn(observed=turn.observed, acted=turn.acted) for turn in turns],
    )
