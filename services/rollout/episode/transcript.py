"""A finished episode as a conversation, within the bounds of earl.transcript."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from earl.transcript import TOKEN_BYTES, TOKENS, TURNS, Sampled, TranscriptTurn, shortened
from services.rollout.episode.columns import TokenColumns

# How many earlier tokens are decoded together with a token, to tell what it adds to the text.
CONTEXT_TOKENS = 6


def conversation(
    system: str,
    observed: Sequence[tuple[str, str]],
    columns: TokenColumns,
    decode: Callable[[list[int]], str],
    opening: str = "",
) -> list[TranscriptTurn]:
    """The turns of an episode, texts shortened, at most TURNS of them.

    observed: (role, text) of each observation; the last may be missing in the columns, where the context was
    full. opening: how every answer begins. Answers are decoded from the columns, so that they are what was
    sampled.
    """
    turns = [TranscriptTurn("system", system, 0)] if system else []
    start, left = 0, TOKENS
    for (role, text), count in zip(observed, columns.turn_tokens, strict=False):
        end = start + count
        answer = columns.loss_mask.find(1, start, end)
        answer = end if answer < 0 else answer
        turns.append(TranscriptTurn(role, text, answer - start))
        if answer < end:
            text = opening + decode(columns.tokens[answer:end])
            kept = min(left, end - answer)
            turns.append(
                TranscriptTurn("assistant", text, end - answer, sampled(columns, answer, kept, decode))
            )
            left -= kept
        start = end
    if len(turns) > TURNS:
        turns = turns[: TURNS // 2] + turns[-TURNS // 2 :]
    return [replace(turn, text=shortened(turn.text)) for turn in turns]


def sampled(
    columns: TokenColumns, start: int, count: int, decode: Callable[[list[int]], str]
) -> tuple[Sampled, ...]:
    """Tokens [start, start + count) of the columns, all of them sampled, each with the text that it adds."""
    tokens = []
    for position in range(start, start + count):
        first = max(start, position - CONTEXT_TOKENS)
        before = decode(columns.tokens[first:position])
        after = decode(columns.tokens[first : position + 1])
        # A character of several tokens belongs to its last one.
        whole = after.rstrip("\ufffd")
        text = whole[len(before.rstrip("\ufffd")) :]
        tokens.append(
            Sampled(
                columns.tokens[position],
                shortened(text, TOKEN_BYTES),
                columns.logprobs[position],
                columns.versions[position],
            )
        )
    return tuple(tokens)
