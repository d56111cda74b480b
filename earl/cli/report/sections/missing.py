"""Figures that a run did not measure, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from earl.cli.report.data import Record
from earl.config.run import RunConfig


def not_measured(config: RunConfig, evaluations: Sequence[Record], *, decided: bool) -> list[dict[str, Any]]:
    """title and reason of each chart that has nothing to show. decided: whether the selector ever decided."""
    reasons = {
        "Gain over the first evaluation": no_gain(evaluations),
        "Parallelism": "" if decided else no_decisions(config),
        "KL to the reference": ""
        if config.trainer.uses_reference
        else "this run has no reference policy (trainer.kl_coefficient = 0).",
    }
    return [{"title": title, "reason": reason} for title, reason in reasons.items() if reason]


def no_gain(evaluations: Sequence[Record]) -> str:
    if any(isinstance(evaluation.get("gain"), (int, float)) for evaluation in evaluations):
        return ""
    if not evaluations:
        return "no evaluation has been finished."
    if len(evaluations) == 1:
        return "one evaluation alone: there is no other to compare it with."
    return "this run did not record its evaluations task by task, so they cannot be paired."


def no_decisions(config: RunConfig) -> str:
    if config.scheduler.selector == "static":
        return 'nothing was decided (scheduler.selector = "static").'
    return "there was no profile to decide by; `earl profile` measures one."
