"""Drafts, as far as more than engines know of them: the names under which workers count them, the figures of
a step that follow, and the bound of what is drafted. Pure.

    engine ─► worker's gauges ─► scheduler's sums ─► metrics.jsonl: totals, and the figures of each step

`drafting_steps` counts a step of an engine once for each sequence that it samples for, with a draft or
without, and `drafting_tokens` the tokens which those gave, so that their ratio without drafts is 1.
"""

from __future__ import annotations

from collections.abc import Mapping

# Where a draft stood: in another episode of the task, in a turn of the environment, in the sequence itself.
TASK, ENVIRONMENT, CONTEXT = "task", "environment", "context"
SOURCES = (TASK, ENVIRONMENT, CONTEXT)
# Tokens that all sequences of an engine together draft in a step, at most. What is predicted of its memory
# holds so many rows more.
DRAFTED_ROWS = 64
DRAFTED, ACCEPTED = "drafted_tokens", "accepted_tokens"
STEPS, TOKENS = "drafting_steps", "drafting_tokens"


def of_source(source: str, figure: str) -> str:
    """The name of a source's figure, for example "drafts.task.drafted_tokens"."""
    return f"drafts.{source}.{figure}"


COUNTED = (
    *(DRAFTED, ACCEPTED, STEPS, TOKENS),
    *(of_source(source, figure) for source in SOURCES for figure in (DRAFTED, ACCEPTED)),
)


def step_figures(counted: Mapping[str, float]) -> dict[str, float]:
    """The figures of what was counted in a step of training, those that it has anything of.

    tokens_per_forward: tokens that a sequence got of a step of its engine, at least 1. draft_acceptance, and
    drafts.<source>.acceptance: the part of the drafted tokens that was accepted, 0..1.
    """
    parts = {"tokens_per_forward": (TOKENS, STEPS), "draft_acceptance": (ACCEPTED, DRAFTED)}
    for source in SOURCES:
        parts[of_source(source, "acceptance")] = of_source(source, ACCEPTED), of_source(source, DRAFTED)
    return {
        name: counted.get(part, 0.0) / counted[whole]
        for name, (part, whole) in parts.items()
        if counted.get(whole)
    }
