"""Seconds that sequences take an engine, by their lengths and its load; fitted to a stage's profile. Pure.

A decoding step of B sequences with S tokens of context in all takes

    step_s + sequence_s B + context_s S

which is the roofline of `services.scheduler.profile.roofline`, whose seconds per token are these over B.
Sequences that decode together share the first term alone, so what each adds besides does not depend on
its company: `added_s`. An engine that decodes for J steps is busy for step_s J and the sum of what is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from earl.errors import ConfigError
from earl.parallelism import Parallelism
from services.scheduler.profile.roofline import non_negative
from services.scheduler.profile.table import ProfileTable

# Tokens of one sequence, or of many.
Tokens = TypeVar("Tokens", float, np.ndarray)


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """The cost of an engine of one layout, in seconds: of a step, of each sequence in it, of each token of
    context that it reads, and of each token of a prompt, or of a moved sequence that is computed again."""

    step_s: float
    sequence_s: float
    context_s: float
    prompt_s: float

    def added_s(self, prompts: Tokens, responses: Tokens) -> Tokens:
        """Seconds that sequences add to the steps that they take part in; tokens, of any equal shapes."""
        context = prompts * responses + responses * responses / 2
        return self.prompt_s * prompts + self.sequence_s * responses + self.context_s * context

    def alone_s(self, prompts: Tokens, responses: Tokens) -> Tokens:
        """Seconds of each sequence on an engine of its own."""
        return self.shared_s(prompts, responses, 1)

    def shared_s(self, prompts: Tokens, responses: Tokens, sequences: int) -> Tokens:
        """Seconds of each sequence on an engine that decodes so many like it at once."""
        return self.step_s * responses + sequences * self.added_s(prompts, responses)


def decode_cost(table: ProfileTable, layout: Parallelism) -> DecodeCost:
    """The cost of one replica of a layout, as near as possible to what the table predicts at its points.

    A profile has no rows of prompts alone: a token of a prompt counts as one that is decoded beside others,
    which costs no less. Raises ConfigError if the table has no throughput of the layout.
    """
    points, targets = [], []
    for context_tokens, concurrency in table.points:
        predicted = table.predict(layout, context_tokens, concurrency)
        if predicted.tokens_per_device_s > 0 and predicted.fits:
            sequences = concurrency / layout.dp
            rate = predicted.tokens_per_device_s * layout.devices / layout.dp
            points.append((1.0, sequences, sequences * context_tokens))
            targets.append(sequences / rate)
    if not points:
        raise ConfigError(f"the profile has no throughput of {layout}", "measure it: earl profile")
    seconds = np.asarray(targets)
    step_s, sequence_s, context_s = non_negative(np.asarray(points) / seconds[:, None], np.ones(len(points)))
    return DecodeCost(float(step_s), float(sequence_s), float(context_s), float(sequence_s))
