"""The run's own files: metrics.jsonl (a line per committed batch), timeline.jsonl, evaluations.jsonl.

After a roll-back a step appears again: the last line of a step is the one that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from earl.obs.metrics import LineFile, read_lines
from services.scheduler.monitor import LengthMonitor
from services.scheduler.records import Evaluation


class RunReport:
    """Writes below `directory`. latest: numbers of the last committed batch, by name."""

    def __init__(self, directory: Path) -> None:
        self._metrics = LineFile(directory / "metrics.jsonl")
        self._timeline = LineFile(directory / "timeline.jsonl")
        evaluations = directory / "evaluations.jsonl"
        self._judged = {(line.get("name"), line.get("version")) for line in read_lines(evaluations)}
        self._evaluations = LineFile(evaluations)
        self.latest: dict[str, float] = {}
        self._last_step_s: float | None = None

    def step(
        self,
        *,
        step: int,
        phase: str,
        version: int,
        time_s: float,
        trajectories: Mapping[str, float],
        trainer: Mapping[str, float],
        lengths: LengthMonitor,
        bytes_by_path: Mapping[str, int],
        ledger: Mapping[str, int],
    ) -> None:
        """One committed batch. version: after it. time_s: since the run began."""
        numbers = {**trainer, **trajectories}
        if self._last_step_s is not None and time_s > self._last_step_s:
            numbers["tokens_per_s"] = trajectories.get("tokens", 0.0) / (time_s - self._last_step_s)
        self._last_step_s = time_s
        self.latest = numbers
        line: dict[str, Any] = {
            "step": step,
            "phase": phase,
            "version": version,
            "time_s": round(time_s, 3),
            **numbers,
            "episode_tokens": asdict(lengths.episodes.summary()),
            "turn_tokens": asdict(lengths.turns.summary()),
            "bytes_by_path": dict(bytes_by_path),
            "ledger": dict(ledger),
        }
        self._metrics.write(line)

    def spans(self, who: str, spans: Iterable[tuple[str, int, int]]) -> None:
        """(what, start_ns, end_ns) of a worker, Unix nanoseconds of its host."""
        records = [{"who": who, "what": what, "start_ns": a, "end_ns": b} for what, a, b in spans]
        if records:
            self._timeline.write(*records)

    def evaluations(self, evaluations: Iterable[Evaluation], time_s: float) -> None:
        """Writes those that are finished and not yet written."""
        for one in evaluations:
            if not one.finished or (one.name, one.version) in self._judged:
                continue
            self._judged.add((one.name, one.version))
            self._evaluations.write(
                {
                    "name": one.name,
                    "version": one.version,
                    "time_s": round(time_s, 3),
                    "episodes": one.episodes,
                    "done": one.done,
                    "failed": one.failed,
                    "win_rate": one.win_rate if one.done else None,
                    "mean_reward": one.mean_reward if one.done else None,
                    "metrics": one.metrics,
                }
            )

    def close(self) -> None:
        for file in (self._metrics, self._timeline, self._evaluations):
            file.close()
