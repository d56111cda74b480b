"""A run's figures as text and as one flat object: rates and rewards with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from earl.cli.lib.mixture_figures import by_environment
from earl.cli.lib.retention import JudgedVersion, kept_text, retention_lines
from earl.stack.status import ConfidenceBounds, EvaluationStatus, RunStatus

if TYPE_CHECKING:
    from earl.stack.launcher import LaunchOutcome


def figures(outcome: LaunchOutcome, seed: int) -> dict[str, Any]:
    """The run's result; what there was no evaluation for is null. Intervals are 95 %, gains paired.

    seconds: of the last launch, its start included; run_seconds: of the whole run, all launches together.
    """
    ledger = outcome.status.ledger
    start = outcome.status.evaluation("start")
    final = outcome.status.evaluation("final")
    metrics = final.metrics if final else {}
    return {
        "win_rate": final.win_rate if final and final.done else None,
        **bounds("win", final.win_bounds if final else None),
        "mean_reward": final.mean_reward if final and final.done else None,
        **bounds("reward", final.reward_bounds if final else None),
        "gain": final.gain.value if final and final.gain else None,
        **bounds("gain", final.gain.bounds if final and final.gain else None),
        "gain_episodes": final.gain.episodes if final and final.gain else None,
        "illegal_rate": final.metrics.get("illegal") if final else None,
        "seconds": round(outcome.seconds, 1),
        "run_seconds": round(outcome.status.elapsed_s, 1),
        "start_win_rate": start.win_rate if start and start.done else None,
        "start_mean_reward": start.mean_reward if start and start.done else None,
        "best_version": outcome.status.best_version or None,
        **{name: getattr(ledger, name) for name in ("issued", "trained", "replayed", "evaluated", "live")},
        "dropped": ledger.dropped_total,
        "seed": seed,
        **paced_figures(outcome.status),
        **({"environments": environments} if (environments := by_environment(metrics)) else {}),
    }


def paced_figures(status: RunStatus) -> dict[str, Any]:
    """That times are simulated, and the fraction of steps that took longer than they should; empty where
    devices are real."""
    if not status.paced:
        return {}
    steps, late = (status.metrics.get(name, 0.0) for name in ("paced_steps", "late_steps"))
    return {"paced": status.paced, "over_pace": late / steps if steps else None}


def bounds(name: str, of: ConfidenceBounds | None) -> dict[str, float | None]:
    return {f"{name}_low": of.low if of else None, f"{name}_high": of.high if of else None}


def closing_lines(status: RunStatus) -> Iterator[str]:
    """Describes the first, the best and the last evaluation, a line each."""
    evaluations = [evaluation for evaluation in status.evaluations if evaluation.done]
    if not evaluations:
        return
    first, last = evaluations[0], evaluations[-1]
    best = next((evaluation for evaluation in evaluations if evaluation.version == status.best_version), last)
    for name in dict.fromkeys((first.name, best.name, last.name)):
        shown = next(item for item in evaluations if item.name == name)
        mark = " (best)" if shown is best and len(evaluations) > 1 else ""
        text = evaluation_text(shown, first.name, winners=status.has_winners)
        yield f"evaluation {shown.name}, version {shown.version}{mark}: {text}"
        yield from environment_lines(shown, first.name, winners=status.has_winners)
    yield from status_retention(status)
    if len(evaluations) > 3:
        yield f"{len(evaluations)} evaluations in all; the report shows every one"


def status_retention(status: RunStatus) -> list[str]:
    """Tells what the finished evaluations of a run show of its protected environments."""
    ended = [item for item in status.evaluations if item.done + item.failed >= item.episodes]
    versions = [JudgedVersion(item.name, item.version, item.metrics) for item in ended]
    return retention_lines(versions, status.best_version)


def environment_lines(evaluation: EvaluationStatus, first: str, *, winners: bool) -> Iterator[str]:
    """A line for each environment of a mixture: its win rate or score, and its gain over the evaluation
    `first`, each with its 95 % interval."""
    for label, figures in by_environment(evaluation.metrics).items():
        name, word = ("win_rate", "win rate") if winners else ("mean_reward", "score")
        parts = [f"{word} {_interval_of(figures, name)}"]
        if "gain" in figures:
            parts.append(f"gain {_interval_of(figures, 'gain', signed=True)} over the {first}")
        if "retained" in figures:
            parts.append(f"kept {kept_text(figures)} of its first score")
        yield f"  {label}: {', '.join(parts)}"


def _interval_of(figures: Mapping[str, float], name: str, *, signed: bool = False) -> str:
    low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
    bounds = ConfidenceBounds(low, high) if low is not None and high is not None else None
    return interval(figures[name], bounds, signed=signed)


def evaluation_text(evaluation: EvaluationStatus, first: str, *, winners: bool) -> str:
    """One evaluation in a line. first: name of the one that its gain is over; winners: of a game."""
    reward = interval(evaluation.mean_reward, evaluation.reward_bounds)
    parts = [f"score {reward}"]
    if winners:
        parts = [f"win rate {interval(evaluation.win_rate, evaluation.win_bounds)}", f"reward {reward}"]
    if evaluation.gain is not None:
        gained = interval(evaluation.gain.value, evaluation.gain.bounds, signed=True)
        parts.append(f"gain {gained} in reward over the {first} on the same {evaluation.gain.episodes} tasks")
    else:
        parts.append(f"{evaluation.done} tasks")
    if evaluation.done + evaluation.failed < evaluation.episodes:
        parts.append(f"ended after {evaluation.done + evaluation.failed} of {evaluation.episodes}")
    if evaluation.failed:
        parts.append(f"{evaluation.failed} failed and do not count")
    return ", ".join(parts)


def interval(value: float, of: ConfidenceBounds | None, *, signed: bool = False) -> str:
    """A value with its interval, for example "+0.21 [+0.14, +0.28]"; the value alone without bounds."""
    form = "+.2f" if signed else ".2f"
    return f"{value:{form}} [{of.low:{form}}, {of.high:{form}}]" if of else f"{value:{form}}"
