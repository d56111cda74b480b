"""The progress of a step, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from earl.cli.lib.step_text import step_text
from earl.stack.status import EvaluationStatus, LedgerStatus, RoleState, RunStatus

PLAYED = {"step_spent_s": 12.4, "step_played": 20.0, "step_episodes": 64.0}
STATUS = RunStatus(phase="train", step=4, steps=60, version=5, metrics=PLAYED)
TRAINED = replace(STATUS, ledger=LedgerStatus(planned=64), metrics=PLAYED | {"step_played": 64.0})


def with_metrics(status: RunStatus, **figures: float) -> RunStatus:
    return replace(status, metrics={**status.metrics, **figures})


def evaluating(phase: str) -> RunStatus:
    evaluation = EvaluationStatus("step-4", 5, 256, 28, 0.5, 0.5, {}, failed=2)
    return replace(STATUS, phase=phase, evaluations=(evaluation,), metrics={"step_spent_s": 12.0})


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (RunStatus(), ""),
        (replace(STATUS, done=True), ""),
        (STATUS, "step 5: 20 of 64 episodes played, 0:12 so far"),
        (
            with_metrics(STATUS, step_left_s=25.0),
            "step 5: 20 of 64 episodes played, 0:12 so far, about 0:25 left",
        ),
        (with_metrics(STATUS, step_spent_s=0.3, step_left_s=2.0), ""),
        (
            with_metrics(STATUS, step_spent_s=0.3, step_left_s=25.0),
            "step 5: 20 of 64 episodes played, 0:00 so far, about 0:25 left",
        ),
        (TRAINED, "step 5: training on 64 episodes, 0:12 so far"),
        (
            with_metrics(TRAINED, step_trained=0.4, step_left_s=18.0),
            "step 5: training on 64 episodes, 40%, 0:12 so far, about 0:18 left",
        ),
        (
            replace(TRAINED, ledger=LedgerStatus()),
            "step 5: 64 of 64 episodes played, waiting for the trainer, 0:12 so far",
        ),
        (
            replace(TRAINED, ledger=LedgerStatus(), roles=(RoleState("reference", 8, 4, 52),)),
            "step 5: 64 of 64 episodes played, 12 wait for the reference stage, 0:12 so far",
        ),
        (evaluating("train"), "evaluation step-4: 30 of 256 episodes played, 0:12 so far"),
        (
            with_metrics(evaluating("train"), step_left_s=90.0, phase_left_s=900.0),
            "evaluation step-4: 30 of 256 episodes played, 0:12 so far, about 1:30 left",
        ),
        (
            with_metrics(evaluating("evaluate:final"), step_left_s=90.0),
            "evaluation step-4: 30 of 256 episodes played, 0:12 so far, about 1:30 left",
        ),
        (with_metrics(evaluating("evaluate:final"), step_left_s=90.0, phase_left_s=92.0), ""),
    ],
)
def test_what_a_step_waits_for(status: RunStatus, text: str):
    assert step_text(status) == text
