"""The record of a run whose devices may move, as benchmarks of moves read it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from earl.cli.compare.figures import MeasuredFigure, over_pace
from earl.cli.lib.splits import read_splits
from earl.cli.report.curves import TRAIN
from earl.cli.report.data import RecordedRun
from earl.obs.metrics import read_lines


def run_figures(run: RecordedRun) -> dict[str, Any]:
    """The figures of a run. whole: every step was trained; works: of each step that was measured."""
    ends_s = dict(run.points("time_s", phase=TRAIN))
    moves = list(read_lines(run.directory / "moves.jsonl"))
    result = run.result
    account = [float(result.get(name, 0)) for name in ("trained", "evaluated", "dropped", "live")]
    return {
        "directory": run.directory.name,
        "steps": len(ends_s),
        "whole": len(ends_s) == run.config.scheduler.steps,
        "train_s": round(max(ends_s.values()) - min(ends_s.values()), 3) if ends_s else None,
        "tokens": sum(value for _, value in run.points("tokens", phase=TRAIN)),
        "over_pace": over_pace_part(run),
        "lost": sum(ending.get("out_of_memory", 0) for ending in run.endings) + result.get("dropped", 0),
        "unaccounted": abs(result.get("issued", 0) - sum(account)) if result else None,
        "moves": [
            {key: move[key] for key in ("step", "before", "after", "holds", "stall_s", "seconds")}
            | {"rolled_back": bool(move.get("rolled_back"))}
            for move in moves
        ],
        "works": [
            [line["step"], line["rollout_device_s"], line["trainer_device_s"]]
            for line in read_splits(run.directory)
        ],
    }


def over_pace_part(run: RecordedRun) -> float | None:
    """The part of a run's paced steps that took longer than their time; None without any."""
    late = over_pace(run)
    return late.value if isinstance(late, MeasuredFigure) else None


def kept_figures(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Figures over all runs: over pace, lost, not accounted for, rolled back."""
    shares = [run["over_pace"] for run in runs if run["over_pace"] is not None]
    unaccounted = [run["unaccounted"] for run in runs]
    return {
        "over_pace_max": max(shares, default=None),
        # One that is stopped drops what is in progress.
        "lost_max": float(max((run["lost"] for run in runs if run["whole"]), default=0)),
        "unaccounted_max": None if None in unaccounted else float(max(unaccounted, default=0)),
        "rolled_back_max": float(sum(move["rolled_back"] for run in runs for move in run["moves"])),
    }


def middle(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None
