"""The protected environments of a run, as its evaluations show them, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earl.cli.lib.mixture_figures import by_environment
from earl.obs.metrics import read_lines


@dataclass(frozen=True, slots=True)
class JudgedVersion:
    """A finished evaluation. metrics: with the figures of environments, as `by_environment` reads them."""

    evaluation: str
    version: int
    metrics: Mapping[str, Any]

    @property
    def is_judged(self) -> bool:
        """Returns whether it was compared with the run's first evaluation."""
        return any("retained" in figures for figures in by_environment(self.metrics).values())

    @property
    def lost(self) -> dict[str, Mapping[str, float]]:
        """Figures of the protected environments of which the version has lost too much, by label."""
        figures = by_environment(self.metrics)
        return {label: values for label, values in figures.items() if values.get("retained") == 0}


def retention_lines(versions: Sequence[JudgedVersion], best_version: int) -> list[str]:
    """Tells whether the last version was refused, and whether all later ones than the first were.

    versions: in the order of the run. Empty for a run without protected environments, or without a loss.
    """
    judged = [version for version in versions if version.is_judged]
    if not judged:
        return []
    last, lines = judged[-1], []
    if last.lost:
        parts = " and ".join(f"{label} {kept_text(figures)}" for label, figures in last.lost.items())
        lines.append(f"version {last.version} is refused: of the first score, {parts} is left")
    if not best_version:
        lines.append("no version is the best: too few episodes of protected environments were played")
    elif all(version.lost for version in judged):
        lines.append(
            f"no later version kept every protected environment: the best one, which `earl export` takes, "
            f"is {best_version}, where the run began"
        )
    return lines


def recorded_retention(run: Path, best_version: int) -> list[str]:
    """Tells what the evaluations in a run's directory show of its protected environments.

    best_version: the version that `best` points to.
    """
    last = {str(line.get("name")): line for line in read_lines(run / "evaluations.jsonl")}
    lines = sorted(last.values(), key=lambda line: (line.get("version", 0), line.get("name") == "final"))
    versions = [JudgedVersion(str(line.get("name")), line.get("version", 0), line) for line in lines]
    return retention_lines(versions, best_version)


def kept_text(figures: Mapping[str, float]) -> str:
    """The part that was kept with its interval, for example "0.91 [0.89, 0.93]"."""
    if "kept" not in figures:
        return "nothing known"
    if "kept_low" not in figures or "kept_high" not in figures:
        return f"{figures['kept']:.2f}"
    return f"{figures['kept']:.2f} [{figures['kept_low']:.2f}, {figures['kept_high']:.2f}]"
