"""What tests of environments read off a step."""

from earl.env.base import Observation, StepResult


def seen(result: StepResult) -> Observation:
    """The observation of a step that gave one, not just a text."""
    assert isinstance(result.observation, Observation)
    return result.observation
