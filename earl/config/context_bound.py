"""The longest context of a run, and what bounds it: one value for all that is sized by it or ends at it.

    rollout.max_context_tokens: a wish ─────────────────────────┐
    model.scratch.max_positions: positions that were asked for ─┼─► the smallest ─► ContextBound
    rollout.held_context_tokens: what the machine holds ────────┘

Without a wish a context may grow as far as some layout of the machine holds. What has to be ready before the
run has lengths of its own is then made for `planned_tokens`, and grows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from earl.config.model import ModelConfig
from earl.config.rollout import RolloutConfig

Source = Literal[
    "rollout.max_context_tokens", "model.scratch.max_positions", "rollout.held_context_tokens", "unknown"
]
# The bound where nobody has given one and no launch has predicted what the machine holds.
UNKNOWN_TOKENS = 256
# A run without a bound is planned for so many tokens at least.
LEAST_PLANNED_TOKENS = 256
# Observations are taken to be as long as answers.
OBSERVED_SHARE = 2


@dataclass(frozen=True, slots=True)
class ContextBound:
    """tokens: of the longest context. source: the key that bounds it; "unknown" before a launch has predicted
    what the machine holds."""

    tokens: int
    source: Source

    @property
    def wished(self) -> bool:
        """Returns whether somebody asked for this bound."""
        return self.source == "rollout.max_context_tokens"


def context_bound(model: ModelConfig, rollout: RolloutConfig) -> ContextBound:
    """The bound of a run's contexts: the smallest of those that there are."""
    positions = 0 if model.path else model.scratch.max_positions
    held = rollout.held_context_tokens
    bounds = [
        ContextBound(rollout.max_context_tokens, "rollout.max_context_tokens"),
        ContextBound(positions, "model.scratch.max_positions"),
        ContextBound(held, "rollout.held_context_tokens"),
    ]
    if not (rollout.max_context_tokens or held):
        bounds.append(ContextBound(UNKNOWN_TOKENS, "unknown"))
    return min((bound for bound in bounds if bound.tokens), key=lambda bound: bound.tokens)


def planned_tokens(bound: ContextBound, answers: Iterable[tuple[int, int]]) -> int:
    """Tokens of the contexts that a run is made ready for: its bound, if one was asked for, and otherwise
    those of an episode that has all its turns, within the bound that there is.

    answers: of each environment, the most turns and the most tokens of an answer.
    """
    if bound.wished:
        return bound.tokens
    most = max((turns * tokens for turns, tokens in answers), default=0)
    return min(bound.tokens, max(LEAST_PLANNED_TOKENS, OBSERVED_SHARE * most))
