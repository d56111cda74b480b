"""One line of progress for the step that runs: what is waited for, since when, how long still. Pure."""

from __future__ import annotations

from earl.cli.lib.status_text import clock, time_left
from earl.stack.status import EvaluationStatus, RunStatus

# A part of a step that takes less, as far as is known, has no line: it would only flicker.
LEAST_S = 3.0


def step_text(status: RunStatus) -> str:
    """Returns a line such as "step 5: 20 of 64 episodes played, 0:12 so far, about 0:25 left".

    The time left is that of the present part of the step: playing, training, or an evaluation that the
    trainer waits for. "" where the part takes less than LEAST_S, where the scheduler does not tell, once
    the run has ended, and in an evaluating phase whose own figures say the same.
    """
    spent_s = status.metrics.get("step_spent_s")
    left_s = status.metrics.get("step_left_s")
    if spent_s is None or status.done or spent_s + (left_s or 0.0) < LEAST_S:
        return ""
    if status.phase.startswith("evaluate:") and time_left(status):
        return ""
    left = f", about {clock(left_s)} left" if left_s is not None else ""
    return f"{_part(status)}, {clock(spent_s)} so far{left}"


def _part(status: RunStatus) -> str:
    evaluation = _evaluating(status)
    if evaluation is not None:
        ended = evaluation.done + evaluation.failed
        return f"evaluation {evaluation.name}: {ended:,} of {evaluation.episodes:,} episodes played"
    step, episodes = f"step {status.step + 1}", f"{status.metrics.get('step_episodes', 0.0):,.0f}"
    if status.ledger.planned:
        trained = status.metrics.get("step_trained")
        done = f", {trained:.0%}" if trained is not None else ""
        return f"{step}: training on {episodes} episodes{done}"
    played = f"{status.metrics.get('step_played', 0.0):,.0f}"
    text = f"{step}: {played} of {episodes} episodes played"
    return f"{text}{_awaited(status)}" if played == episodes else text


def _evaluating(status: RunStatus) -> EvaluationStatus | None:
    """The evaluation that the trainer waits for; a batch that is planned goes first."""
    if "step_episodes" in status.metrics:
        return None
    evaluations = (item for item in status.evaluations if item.version == status.version)
    return next((item for item in evaluations if item.done + item.failed < item.episodes), None)


def _awaited(status: RunStatus) -> str:
    """The part of a step that is waited for, of one whose episodes have all been played."""
    for role in status.roles:
        missing = role.waiting + role.leased
        if role.name != "trainer" and missing:
            return f", {missing:,} wait for the {role.name} stage"
    return ", waiting for the trainer"
