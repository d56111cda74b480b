"""Results of games that pay at their end, for one seat or for several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from earl.env.base import Observation, StepResult

# A seat's reward and its metrics.
SeatOutcome = tuple[float, Mapping[str, float]]


def running(shown: Observation, seats: int) -> StepResult:
    """The result of a step after which the game continues; `seats` is how many the client plays."""
    return StepResult(shown, rewards=(0.0,) * seats if seats > 1 else ())


def last(text: str, seat: int, outcomes: Sequence[SeatOutcome], *, truncated: bool = False) -> StepResult:
    """The last result. seat: who took the step; outcomes: of each seat that the client plays."""
    rewards, figures = zip(*outcomes, strict=True)
    ending = {"done": not truncated, "truncated": truncated, "metrics": figures[0]}
    if len(outcomes) == 1:
        return StepResult(Observation(text), rewards[0], **ending)
    return StepResult(Observation(text, seat=seat), rewards=rewards, seat_metrics=figures, **ending)
