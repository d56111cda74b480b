"""A finished episode as a conversation, within the bounds of earl.transcript."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from earl.transcript import TOKEN_BYTES, TOKENS, TURNS, Sampled, Turn, shortened
from services.rollout.episode.columns import TokenColumns

# Tokens that are decoded with one before it, so that its part of the text is what it adds.
CONTEXT_TOKENS = 6


def conversation(
    system: str,
    observed: Sequence[tuple[str, str]],
    columns: TokenColumns,
    decode: Callable[[list[int]], str],
    opening: str = "",
) -> list[Turn]:
    """observed: (role, text) of each observation, the last of which may have found no room. opening: how
    every answer begins.

    What the agent said is decoded from the columns, so that it is what was sampled.
    """
    turns = [Turn("system", system, 0)] if system else []
    start, left = 0, TOKENS
    for (role, text), count in zip(observed, columns.turn_tokens, strict=False):
        end = start + count
        spoken = columns.loss_mask.find(1, start, end)
        spoken = end if spoken < 0 else spoken
        turns.append(Turn(role, text, spoken - start))
        if spoken < end:
            text = opening + decode(columns.tokens[spoken:end])
            kept = min(left, end - spoken)
            turns.append(Turn("assistant", text, end - spoken, sampled(columns, spoken, kept, decode)))
            left -= kept
        start = end
    if len(turns) > TURNS:
        turns = turns[: TURNS // 2] + turns[-TURNS // 2 :]
    return [replace(turn, text=shortened(turn.text)) for turn in turns]


def sampled(
    columns: TokenColumns, start: int, count: int, decode: Callable[[list[int]], str]
) -> tuple[Sampled, ...]:
    """The `count` tokens of the columns from `start` on, which the agent said."""
    found = []
    for at in range(start, start + count):
        near = max(start, at - CONTEXT_TOKENS)
        before, after = decode(columns.tokens[near:at]), decode(columns.tokens[near : at + 1])
        # A character that is not complete yet is its last token's.
        whole = after.rstrip("\ufffd")
        text = whole[len(before.rstrip("\ufffd")) :]
        token = columns.tokens[at]
        found.append(Sampled(token, shortened(text, TOKEN_BYTES), columns.logprobs[at], columns.versions[at]))
    return tuple(found)
