"""transformers' own logits processors for the filters of a request, in the order of its `generate`."""

from typing import Any

from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from earl.config.sampling_filters import SamplingFilters


def processors(filters: SamplingFilters, temperature: float) -> Any:
    """Call it with token ids [N, T] and logits [N, V]. A greedy request has the penalty alone."""
    chosen = LogitsProcessorList()
    if filters.repetition_penalty != 1:
        chosen.append(RepetitionPenaltyLogitsProcessor(penalty=filters.repetition_penalty))
    if temperature:
        chosen.append(TemperatureLogitsWarper(temperature))
        if filters.top_k:
            chosen.append(TopKLogitsWarper(top_k=filters.top_k))
        if filters.top_p < 1:
            chosen.append(TopPLogitsWarper(top_p=filters.top_p))
        if filters.min_p:
            chosen.append(MinPLogitsWarper(min_p=filters.min_p))
    return chosen
