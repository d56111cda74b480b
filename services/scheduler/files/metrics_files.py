"""The run's own files: metrics.jsonl (a line per committed batch), timeline, switches, evaluations.

After a roll-back a step appears again: the last line of a step is the one that counts.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from earl.obs.histogram import Histogram
from earl.obs.metrics import LineFile, read_lines
from earl.parallelism import ROLLOUT
from earl.worker_report import BusySpan, TransferTotals
from services.scheduler.batches.columns import ColumnProgress
from services.scheduler.ledger.evaluation import (
    Judgement,
    Judgements,
    environment_figures,
    rewards,
    wins,
)
from services.scheduler.monitor.length_sketch import histogram
from services.scheduler.monitor.remaining import Remaining
from services.scheduler.monitor.workload import ObservedWorkload, StepFigures
from services.scheduler.state.device_move import DeviceMove, by_stage, division_text
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.switch_records import SwitchRecord

# Outcomes of a switch: as requested, or back to the parallelism before.
OUTCOMES = ("done", "rolled_back")


class RunReport:
    """Writes below `directory`. latest: numbers of the last committed batch, by name; last_step_s: when it
    was, since the run began. switches, stalls: that this process saw end, by stage and outcome, by stage.
    judgements: of its evaluations."""

    def __init__(self, directory: Path) -> None:
        self._metrics = LineFile(directory / "metrics.jsonl")
        self._timeline = LineFile(directory / "timeline.jsonl")
        self._switches = LineFile(directory / "switches.jsonl")
        self._moves = LineFile(directory / "moves.jsonl")
        evaluations = directory / "evaluations.jsonl"
        self._written = {str(line.get("name")): _mark_of(line) for line in read_lines(evaluations)}
        self._evaluations = LineFile(evaluations)
        self.judgements = Judgements()
        self.latest: dict[str, float] = {}
        self.last_step_s: float | None = None
        self.remaining = Remaining()
        self.switches: Counter[tuple[str, str]] = Counter()
        self.stalls: dict[str, Histogram] = {}

    def step(
        self,
        *,
        step: int,
        phase: str,
        version: int,
        time_s: float,
        trajectories: Mapping[str, float],
        trainer: Mapping[str, float],
        observed: StepFigures,
        length_tokens: Sequence[int],
        transfers: Iterable[TransferTotals],
        ledger: Mapping[str, int],
        stages: Mapping[str, ColumnProgress],
    ) -> None:
        """Records one committed batch. version: after it. time_s: since the run began.

        length_tokens: of its trajectories; `observed` is about all recent episodes.
        transfers: of the whole run so far, one for each path.
        stages: how far they are, by role, with what is to be trained next.
        """
        numbers = {**trainer, **trajectories}
        if self.last_step_s is not None and time_s > self.last_step_s:
            elapsed_s = time_s - self.last_step_s
            numbers["tokens_per_s"] = trajectories.get("tokens", 0.0) / elapsed_s
            if (idle := idle_fraction(observed)) is not None:
                numbers["engines_idle_fraction"] = idle
        self.last_step_s = time_s
        self.remaining.observe(phase, step, time_s)
        self.latest = numbers
        line: dict[str, Any] = {
            "step": step,
            "phase": phase,
            "version": version,
            "time_s": round(time_s, 3),
            **numbers,
            "episode_tokens": asdict(observed.episodes),
            "turn_tokens": asdict(observed.turns),
            "growth": round(observed.growth, 6),
            "parallelism": {stage: parallelism.as_dict() for stage, parallelism in observed.running.items()},
            "load": {stage: load_line(load) for stage, load in observed.stages.items()},
            "length_histogram": asdict(histogram(length_tokens)),
            "transfers": {total.path: transfers_line(total) for total in transfers},
            "ledger": dict(ledger),
        }
        if stages:
            line["stages"] = {role: asdict(progress) for role, progress in stages.items()}
        self._metrics.write(line)

    def spans(self, who: str, spans: Iterable[BusySpan]) -> None:
        """Records the spans of a worker, or of a stage's switches."""
        records = [{"who": who, **asdict(span)} for span in spans]
        if records:
            self._timeline.write(*records)

    def switched(self, stage: str, switch: SwitchRecord, now_ns: int) -> None:
        """A switch ended now (Unix nanoseconds). The stall is drawn at its end: there stages change over."""
        self._switches.write(
            {
                "stage": stage,
                "epoch": switch.epoch,
                "by": switch.by.value,
                "step": switch.step,
                "before": switch.former.as_dict(),
                "after": switch.target.as_dict(),
                "reason": switch.reason,
                "rolled_back": switch.rolled_back,
                "message": switch.message,
                **switch.figures(),
                "stall_s": round(switch.stall_s, 4),
                "seconds": round(switch.seconds, 4),
                "end_ns": now_ns,
            }
        )
        self.switches[stage, OUTCOMES[switch.rolled_back]] += 1
        self.stalls.setdefault(stage, Histogram()).add(switch.stall_s)
        begin_ns, stall_ns = (now_ns - int(seconds * 1e9) for seconds in (switch.seconds, switch.stall_s))
        what = f"{'back to' if switch.rolled_back else 'to'} "
        what += str(switch.former if switch.rolled_back else switch.target)
        spans = [BusySpan(what, begin_ns, now_ns)]
        if switch.stall_s > 0:
            spans.append(BusySpan("stall", stall_ns, now_ns))
        self.spans(f"{stage} switches", spans)

    def moved(self, move: DeviceMove, now_ns: int) -> None:
        """A move of devices ended now (Unix nanoseconds)."""
        devices = {
            name: by_stage(division)
            for name, division in (("before", move.before), ("after", move.after), ("holds", move.holds))
        }
        self._moves.write(
            {
                "number": move.number,
                "by": move.by.value,
                "step": move.step,
                **devices,
                "layouts": {stage: str(layout) for stage, layout in move.held_layouts.items()},
                "reason": move.reason,
                "rolled_back": move.rolled_back,
                "message": move.message,
                "stall_s": round(move.stall_s, 4),
                "seconds": round(move.seconds, 4),
                "end_ns": now_ns,
            }
        )
        begin_ns = now_ns - int(move.seconds * 1e9)
        self.spans(
            "device moves", [BusySpan(division_text(move.holds, move.held_replicas), begin_ns, now_ns)]
        )

    def evaluations(self, evaluations: Collection[EvaluationRecord], time_s: float) -> None:
        """Writes those that are finished and not yet written with these results; they are too dear to be lost
        to a disk that was full for a while."""
        if all(self._written.get(record.name) == _mark(record) for record in evaluations if record.finished):
            return
        for record, judgement in self.judgements.judged(evaluations):
            if not record.finished or self._written.get(record.name) == _mark(record):
                continue
            if self._evaluations.write({"time_s": round(time_s, 3), **evaluation_line(record, judgement)}):
                self._written[record.name] = _mark(record)

    def close(self) -> None:
        for file in (self._metrics, self._timeline, self._switches, self._moves, self._evaluations):
            file.close()


def evaluation_line(record: EvaluationRecord, judgement: Judgement) -> dict[str, Any]:
    """An evaluation as evaluations.jsonl has it: figures with their 95 % intervals, then every episode.

    rewards and wins are by instance, null where the episode failed; the gain is the paired one over the
    run's first evaluation, absent for that one.
    """
    counts = ("name", "version", "episodes", "done", "failed")
    numbers: dict[str, Any] = {name: getattr(record, name) for name in counts}
    shown = [("win_rate", judgement.win_rate), ("mean_reward", judgement.reward)]
    if judgement.gain is not None:
        shown.append(("gain", judgement.gain))
        numbers["gain_episodes"] = judgement.pairs
    for name, figure in shown:
        numbers |= {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
    numbers |= environment_figures(judgement)
    return {**numbers, "metrics": record.metrics, "rewards": rewards(record), "wins": wins(record)}


def transfers_line(total: TransferTotals) -> dict[str, float]:
    """The line of what was read over one path."""
    figures = asdict(total)
    del figures["path"]
    return figures | {"gb_per_s": round(total.gb_per_s, 6)}


def idle_fraction(observed: StepFigures) -> float | None:
    """The part of the device-seconds of rollout in which its engines generated nothing, 0..1; None where
    they do not tell. Heartbeats tell it, so what one step lacks the next may have. Devices that came or went
    within the step count for as long as they were there.
    """
    done = observed.stages[ROLLOUT].done if ROLLOUT in observed.stages else None
    if done is None or not done.reported or done.there_s <= 0:
        return None
    return max(0.0, 1 - done.device_s / done.there_s)


def load_line(observed: ObservedWorkload) -> dict[str, Any]:
    """Formats a stage's observed workload for metrics.jsonl and decisions.jsonl; null where not reported."""
    kv = observed.kv and {**asdict(observed.kv), "used_fraction": observed.kv.used_fraction}
    figures = ("concurrency_most", "tokens_per_device_s", "memory_fraction")
    return {**asdict(observed.workload), **{name: getattr(observed, name) for name in figures}, "kv": kv}


def _mark(record: EvaluationRecord) -> tuple[int, int, bytes]:
    """Returns a key that distinguishes evaluations of the same name."""
    return record.version, record.failed, record.reward_data


def _mark_of(line: Mapping[str, Any]) -> tuple[int, int, bytes]:
    """The mark of an evaluation that was written."""
    numbers = [math.nan if value is None else value for value in line.get("rewards", [])]
    return line.get("version", 0), line.get("failed", 0), struct.pack(f"<{len(numbers)}d", *numbers)
