"""The replies of a completions API, checked before anything is done with them. Pure.

{"choices": [{"prompt_logprobs": [null, {"17": {"logprob": -0.4, "decoded_token": "x"}}, ...]}]}
                                    └─ the first token has none
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np

T = TypeVar("T")

# A log-prob may be above 0 by what float32 rounds.
ROUNDING = 1e-4
# vLLM writes this for minus infinity, for JSON has none.
IMPOSSIBLE = -9999.0
# Bytes of a reply: for each token and alternative, and for all that is around them.
TOKEN_BYTES, REPLY_BYTES = 512, 64 << 10


class ModelCard(msgspec.Struct, frozen=True):
    """A model of the server. max_model_len: its longest sequence in tokens; None if the server tells none."""

    id: str
    max_model_len: int | None = None


class TokenScore(msgspec.Struct, frozen=True):
    """A token at a position: its log-prob given those before it, and its text."""

    logprob: float
    decoded_token: str | None = None


# The scores of one position by token id: of the token that was given, and of as many as were requested.
PositionScores = Mapping[int, TokenScore]


class _Choice(msgspec.Struct, frozen=True):
    prompt_logprobs: list[dict[int, TokenScore] | None] | None = None


class _Completion(msgspec.Struct, frozen=True):
    choices: list[_Choice]


class _Cards(msgspec.Struct, frozen=True):
    data: list[ModelCard]


class _Complaint(msgspec.Struct, frozen=True):
    message: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Complaint


def reply_bytes(tokens: int, alternatives: int = 0) -> int:
    """The most bytes of a reply about a prompt of so many tokens."""
    return REPLY_BYTES + TOKEN_BYTES * tokens * (1 + alternatives)


def model_cards(body: bytes) -> tuple[ModelCard, ...]:
    """The models of a server. Raises ValueError for what is no list of them."""
    return tuple(_decoded(body, _Cards).data)


def prompt_scores(body: bytes, tokens: Sequence[int]) -> list[PositionScores]:
    """The scores of each token of a prompt but the first, in their order.

    Raises ValueError unless they are of these tokens, finite, and log-probs.
    """
    choices = _decoded(body, _Completion).choices
    if len(choices) != 1:
        raise ValueError(f"it has {len(choices)} choices in place of 1")
    positions = choices[0].prompt_logprobs
    if positions is None:
        raise ValueError("it has no prompt_logprobs")
    if len(positions) != len(tokens):
        raise ValueError(f"it has {len(positions)} prompt_logprobs for {len(tokens)} tokens")
    checked: list[PositionScores] = []
    for position, (token, scores) in enumerate(zip(tokens, positions, strict=True)):
        if position == 0:
            continue
        if not scores or token not in scores:
            given = ", ".join(map(str, list(scores or {})[:4])) or "nothing"
            raise ValueError(f"at position {position} it has {given}, and the prompt has token {token}")
        for number, score in scores.items():
            if not math.isfinite(score.logprob) or score.logprob <= IMPOSSIBLE:
                raise ValueError(
                    f"the log-prob of token {number} at position {position} is {score.logprob}, not finite"
                )
            if score.logprob > ROUNDING:
                raise ValueError(
                    f"the log-prob of token {number} at position {position} is {score.logprob:g}, above 0"
                )
        checked.append(scores)
    return checked


def prompt_logprobs(body: bytes, tokens: Sequence[int]) -> np.ndarray:
    """float32[tokens]: the log-prob of each token given those before it, 0 for the first.

    Raises ValueError as `prompt_scores`.
    """
    scores = prompt_scores(body, tokens)
    values = [scores[i][token].logprob for i, token in enumerate(tokens[1:])]
    return np.minimum(np.array([0.0, *values], np.float32), 0.0)


def refusal_reason(body: bytes) -> str:
    """A server's own words in a reply that is an error; its beginning where it has none in the usual form."""
    try:
        return _decoded(body, _Refusal).error.message
    except ValueError:
        return body.decode("utf-8", "replace")


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not of the form that was expected ({error})") from None
