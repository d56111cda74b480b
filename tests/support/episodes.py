"""Whole episodes of an environment without a host, and what tests read off a step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from earl.env.base import Observation, StepResult

MAX_STEPS = 3_000


def seen(result: StepResult) -> Observation:
    """The observation of a step that gave one, not just a text."""
    assert isinstance(result.observation, Observation)
    return result.observation


def played(
    environment: Callable[[], Any],
    seed: int,
    task: dict[str, Any] | None = None,
    choose: Callable[[Observation], str] | None = None,
) -> tuple[StepResult, list[Any]]:
    """(the last result, everything that was seen in order); `choose` is random where it is not given."""
    choose = choose or at_random(seed)
    episode = environment()
    observation = episode.reset(seed, dict(task or {}))
    shown: list[Any] = [observation]
    try:
        for _ in range(MAX_STEPS):
            result = episode.step(choose(observation))
            shown.append(result)
            observation = result.observation
            if result.done or result.truncated:
                return result, shown
    finally:
        episode.close()
    raise AssertionError(f"{environment} has not ended after {MAX_STEPS} steps")


def at_random(seed: int) -> Callable[[Observation], str]:
    """Chooses among the legal actions; where none is listed, says something."""
    rng = random.Random(seed)
    return lambda observation: rng.choice(observation.legal_actions or ("[1]",))


def total(shown: list[Any]) -> float:
    """The episode's return."""
    return sum(result.reward for result in shown if isinstance(result, StepResult))


# Texts that no game means; every environment ends or goes on by its own rule, and raises nothing.
MALFORMED = (
    "",
    "[",
    "[]",
    "]][[",
    "pizza",
    "[pizza]",
    "[-1]",
    "[99999999999999999999]",
    "[0 0 0 0 0 0 0]",
    "[٣]",
    "[²]",
    "[nan]",
    "\x00[4]\x00",
    "[a1" * 2_000,
    "[1]\n[2]\n[x]",
    "[Propose] 💥",
    "{'(0,0)': ['F0']}",
    "[play ]",
    "[" + "9" * 5_000 + "]",
)
