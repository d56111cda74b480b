"""Conversations from the contracts' messages. Nothing here decides."""

from __future__ import annotations

import math

from earl.transcript import TOKEN_BYTES, TOKENS, TURNS, Sampled, TranscriptTurn, shortened
from earl.v1 import scheduler_pb2

ROLE_CHARACTERS = 32


def decode_transcript(result: scheduler_pb2.AttemptResult) -> tuple[TranscriptTurn, ...]:
    """The conversation within TURNS turns of TEXT_BYTES; empty if there was none."""
    if not result.transcript:
        return ()
    return tuple(
        TranscriptTurn(turn.role[:ROLE_CHARACTERS], shortened(turn.text), turn.tokens, decode_sampled(turn))
        for turn in result.transcript[:TURNS]
    )


def decode_sampled(turn: scheduler_pb2.TranscriptTurn) -> tuple[Sampled, ...]:
    """The first TOKENS that are numbers throughout."""
    return tuple(
        Sampled(token.id, shortened(token.text, TOKEN_BYTES), token.logprob, token.version)
        for token in turn.sampled[:TOKENS]
        if math.isfinite(token.logprob)
    )
