"""Refuses invalid specs and requests before they start, alike in every engine."""

from __future__ import annotations

import math

import numpy as np

from earl.config.sampling_filters import LEAST_PENALTY, MOST_PENALTY, SamplingFilters
from earl.errors import ConfigError, ContextTooLong, EngineBusy, EngineError, WeightsIncomplete
from earl.models.spec import load_spec
from earl.models.tp import check_tp
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest


def check_spec(spec: EngineSpec) -> None:
    """Checks what can be known before a process is started.

    Raises ModelNotFound, UnsupportedModel, IllegalParallelism, ConfigError.
    """
    model = load_spec(spec.model_dir)
    check_tp(model, spec.tp)
    if spec.max_context_tokens > model.max_positions:
        raise ConfigError(
            f"rollout.max_context_tokens {spec.max_context_tokens} exceeds the model's "
            f"{model.max_positions} positions",
            f"use at most {model.max_positions}",
        )


def check_request(request: GenerateRequest, spec: EngineSpec, vocabulary: int) -> None:
    """Raises ContextTooLong or EngineError, which name the value that nothing can be generated from."""
    context = spec.max_context_tokens
    if len(request.ids) + request.max_new_tokens > context:
        raise ContextTooLong(
            f"{len(request.ids)} tokens and {request.max_new_tokens} to generate exceed the context of "
            f"{context} tokens",
            "end the episode, or raise rollout.max_context_tokens",
        )
    if not request.ids or request.max_new_tokens < 1:
        raise EngineError(
            f"a request of {len(request.ids)} tokens for {request.max_new_tokens} new ones",
            "give at least one of each",
        )
    if not 0 <= request.answered <= len(request.ids):
        raise EngineError(
            f"answered {request.answered} of a request of {len(request.ids)} tokens",
            "give how many of its last tokens begin the answer",
        )
    if min(request.ids) < 0 or max(request.ids) >= vocabulary:
        wrong = next(token for token in request.ids if not 0 <= token < vocabulary)
        raise EngineError(f"token id {wrong} is outside the vocabulary of {vocabulary}", "correct the tokens")
    for reference in request.references:
        check_reference(reference, vocabulary)
    if not (math.isfinite(request.temperature) and request.temperature >= 0):
        raise EngineError(f"temperature {request.temperature} is not >= 0", "give 0 for greedy")
    check_filters(request.filters)


def check_filters(filters: SamplingFilters) -> None:
    """Raises EngineError, which names the filter that is out of its range."""
    if filters.top_k < 0:
        raise EngineError(f"top_k {filters.top_k} is not >= 0", "give 0 for all tokens")
    if not 0 < filters.top_p <= 1:
        raise EngineError(f"top_p {filters.top_p} is not in (0, 1]", "give 1 for all tokens")
    if not 0 <= filters.min_p <= 1:
        raise EngineError(f"min_p {filters.min_p} is not in [0, 1]", "give 0 for all tokens")
    penalty = filters.repetition_penalty
    if not LEAST_PENALTY <= penalty <= MOST_PENALTY:
        raise EngineError(
            f"repetition_penalty {penalty} is not in [{LEAST_PENALTY:g}, {MOST_PENALTY:g}]",
            "give 1 for none",
        )


def refuse_filters(filters: SamplingFilters, engine: str) -> None:
    """Raises EngineError for a request with filters to an engine that has none, naming them."""
    if filters:
        settings = ", ".join(f"{name} {value:g}" for name, value in filters.active.items())
        raise EngineError(
            f'{settings}: rollout.engine = "{engine}" does not filter what it samples from',
            'set rollout.engine = "torch" or "vllm", or leave the filters out',
        )


def check_reference(reference: bytes, vocabulary: int) -> None:
    """Raises EngineError unless these are token ids, int32, of the vocabulary: a draft of any other would end
    the engine."""
    if len(reference) % 4:
        raise EngineError(f"a reference of {len(reference)} bytes is none of int32 token ids", "correct it")
    ids = np.frombuffer(reference, np.int32)
    wrong = ids[(ids < 0) | (ids >= vocabulary)]
    if len(wrong):
        raise EngineError(
            f"token id {wrong[0]} of a reference is outside the vocabulary of {vocabulary}",
            "correct the tokens",
        )


def check_queue(spec: EngineSpec, waiting: int) -> None:
    """Raises EngineBusy if max_waiting requests wait already."""
    if waiting >= spec.max_waiting:
        raise EngineBusy(
            f"engine {spec.name} has {waiting} requests waiting", "wait for some to end, or raise max_waiting"
        )


def check_complete(spec: EngineSpec, complete: bool) -> None:
    """Raises WeightsIncomplete unless a version is completely loaded."""
    if not complete:
        raise WeightsIncomplete(
            f"engine {spec.name} has no complete weights", "load a version before generating"
        )


def check_unused(request: GenerateRequest, used: bool) -> None:
    """Raises EngineError if a request of the same id is in flight."""
    if used:
        raise EngineError(f"request id {request.request_id!r} is in flight", "give every request its own")
