"""What a run's files say, as sections of the page; read again as far as they have grown.

Curves are thinned to what a screen can show. What a step says is kept as far as the page needs it, so
memory stays bounded however long the run is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from earl.cli.lib.switches import RecordedSwitch, record_of
from earl.cli.report.data import Record, flat, judged, start_ns, surviving
from earl.cli.report.heatmap import columns
from earl.cli.report.panels import SMOOTHING_STEPS, TRAIN
from earl.config.run import RunConfig
from earl.dashboard.chosen import Chosen
from earl.errors import IllegalParallelism
from earl.obs.tail import Tail
from earl.parallelism import Parallelism

# Points of a curve that are sent; steps that are kept.
POINTS = 480
STEPS = 40_000
# The last switches and evaluations that are listed.
LISTED = 200
CURVES = ("win_rate", "reward_mean", "staleness_mean", "staleness_max", "tokens_per_s", "entropy")
KEPT = {"step", "phase", "version", "time_s", "length_mean", "length_histogram.first", *CURVES,
        "length_histogram.counts", "length_histogram.per_octave"}  # fmt: skip
KEPT_GROUPS = ("transfers.", "ledger.")
FIGURES = ("win_rate", "mean_reward", "gain")
TIMELINE_BYTES = 64 << 10


class RunHistory:
    """Reads one run's directory. update: sections that may have changed, by name."""

    def __init__(self, directory: Path, config: RunConfig) -> None:
        self._config = config
        self._timeline = directory / "timeline.jsonl"
        self._tails = {
            name: Tail(directory / f"{name}.jsonl")
            for name in ("metrics", "evaluations", "switches", "endings", "decisions")
        }
        self._metrics: list[Record] = []
        self._evaluations: list[Record] = []
        self._switches: list[RecordedSwitch] = []
        self._endings: dict[str, int] = {}
        self._chosen = Chosen()
        self._begun = False

    @property
    def newest(self) -> int | None:
        """The version after the last step; None before the first."""
        return max((int(record.get("version", 0)) for record in self._metrics), default=None)

    @property
    def last(self) -> Record:
        """What the last step said; empty before the first."""
        return self._metrics[-1] if self._metrics else {}

    def update(self) -> dict[str, Any]:
        changed = {name for name, tail in self._tails.items() if self._read(name, tail)}
        if not self._begun:
            self._begun, changed = True, set(self._tails)
        sections: dict[str, Any] = {}
        if changed & {"metrics", "evaluations"}:
            sections["learning"] = self._learning()
        if changed & {"metrics", "switches", "decisions"}:
            sections["lengths"] = self._lengths()
        if "decisions" in changed:
            sections["decisions"] = self._chosen.section()
        if "endings" in changed:
            sections["endings"] = self._endings
        if "metrics" in changed:
            sections["moved"] = self._moved()
        return sections

    def _read(self, name: str, tail: Tail) -> bool:
        new = tail.read()
        if tail.renewed:
            self._forget(name)
        if name == "metrics" and new:
            steps = surviving([*self._metrics, *map(kept, new)])
            self._metrics = steps if len(steps) <= STEPS else [*steps[: STEPS // 2 : 2], *steps[STEPS // 2 :]]
        elif name == "evaluations":
            # Every episode's reward is in the file; the page shows their means.
            self._evaluations += [
                {key: value for key, value in evaluation.items() if key not in ("rewards", "wins")}
                for evaluation in new
            ]
        elif name == "switches":
            self._switches += [switch for switch in map(record_of, new) if switch is not None]
        elif name == "decisions":
            self._chosen.add(new)
        elif name == "endings":
            for counts in new:
                for kind, count in counts.items():
                    if kind != "time_s" and isinstance(count, int):
                        self._endings[kind] = self._endings.get(kind, 0) + count
        return bool(new) or tail.renewed

    def _forget(self, name: str) -> None:
        if name == "metrics":
            self._metrics = []
        elif name == "evaluations":
            self._evaluations = []
        elif name == "switches":
            self._switches = []
        elif name == "decisions":
            self._chosen = Chosen()
        else:
            self._endings = {}

    # --- sections ---------------------------------------------------------------------------

    def _trained(self) -> list[Record]:
        return [record for record in self._metrics if record.get("phase") == TRAIN]

    def _learning(self) -> dict[str, Any]:
        trained = self._trained()
        evaluations = judged(self._evaluations, self.newest)[-LISTED:]
        return {
            "curves": {name: points(trained, name) for name in CURVES if name != "tokens_per_s"},
            "throughput": points(self._metrics, "tokens_per_s", over="time_s"),
            "smoothing": SMOOTHING_STEPS,
            "staleness_most": self._config.scheduler.staleness,
            "evaluations": [self._evaluation(evaluation) for evaluation in evaluations],
            "steps": trained[-1]["step"] if trained else 0,
        }

    def _evaluation(self, evaluation: Record) -> dict[str, Any]:
        shown = {
            key: evaluation.get(key)
            for key in ("name", "version", "episodes", "done", "failed", "gain_episodes")
        }
        shown["step"] = max(0, int(evaluation.get("version", 1)) - 1 - self._config.warmup.batches)
        for figure in FIGURES:
            shown[figure] = [evaluation.get(f"{figure}{end}") for end in ("", "_low", "_high")]
        return shown

    def _lengths(self) -> dict[str, Any]:
        trained = self._trained()
        drawn, per_octave = columns(trained)
        stages = sorted({stage for record in trained for stage in record.get("cuts", {})})
        return {
            "per_octave": per_octave,
            "columns": [
                {
                    "first": column.first,
                    "last": column.last,
                    "mean": column.tokens / column.total,
                    "bins": column.counts,
                }
                for column in drawn
            ],
            "stages": [
                {
                    "name": stage,
                    "ran": bands(
                        [(record["step"] - 1, record.get("cuts", {}).get(stage, "")) for record in trained]
                    ),
                    "changes": self._chosen.changes(stage)[-LISTED:],
                }
                for stage in stages
            ],
            "switches": self._switched(trained)[-LISTED:],
        }

    def _switched(self, trained: Sequence[Record]) -> list[dict[str, Any]]:
        """Every switch that ended, with the training step that it came before."""
        times = [float(record.get("time_s", 0.0)) for record in trained]
        origin_ns = start_ns(self._metrics, last_spans(self._timeline)) if self._switches else 0
        shown = []
        for switch in self._switches:
            time_s = (switch.end_ns - origin_ns) / 1e9
            place = bisect_left(times, time_s)
            step = switch.step - 1 if switch.step else trained[place - 1]["step"] if place else 0
            fields = switch.as_json()
            del fields["end_ns"]
            fields |= {"at_step": max(0, step), "time_s": time_s}
            shown.append(fields | {"before": str(switch.before), "after": str(switch.after)})
        return shown

    def _moved(self) -> list[dict[str, Any]]:
        """What was read by each path: totals, and bytes a step."""
        names = sorted(
            {key.split(".")[1] for key in self.last if key.startswith("transfers.") and key.count(".") == 2}
        )
        shown = []
        for path in names:
            key = f"transfers.{path}.size_bytes"
            sizes = [
                (float(record["step"]), float(record[key])) for record in self._trained() if key in record
            ]
            shown.append(
                {
                    "path": path,
                    **{name: self.last.get(f"transfers.{path}.{name}") for name in MOVED},
                    "a_step": thinned(
                        [(step, max(0.0, size - before)) for (_, before), (step, size) in pairwise(sizes)]
                    ),
                }
            )
        return shown


MOVED = ("size_bytes", "seconds", "transfers", "retries")


def kept(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the page needs of a line of metrics.jsonl, flat; `cuts`: how each stage was cut, as text."""
    fields = {key: value for key, value in flat(record).items() if key in KEPT or key.startswith(KEPT_GROUPS)}
    parallelism = record.get("parallelism")
    if isinstance(parallelism, Mapping):
        fields["cuts"] = {
            str(stage): text for stage, degrees in parallelism.items() if (text := layout_text(degrees))
        }
    return fields


def layout_text(degrees: Any) -> str:
    try:
        return str(Parallelism(**degrees))
    except (TypeError, IllegalParallelism):
        return ""


def points(records: Iterable[Record], key: str, over: str = "step") -> list[tuple[float, float]]:
    """(step or seconds, value) of the records that have both, as many as a screen shows."""
    return thinned(
        [
            (float(record[over]), float(record[key]))
            for record in records
            if isinstance(record.get(key), (int, float)) and isinstance(record.get(over), (int, float))
        ]
    )


def thinned(every: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means of stretches of equally many points, each at its last one's place; all, if they are few."""
    size = -(-len(every) // POINTS)
    if size <= 1:
        return list(every)
    parts = (every[start : start + size] for start in range(0, len(every), size))
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


def bands(layouts: Sequence[tuple[float, str]]) -> list[dict[str, Any]]:
    """One a stretch of steps with the same layout, from the start of its first to the end of its last."""
    shown = []
    for layout, run in groupby(layouts, key=lambda step_layout: step_layout[1]):
        steps = [step for step, _ in run]
        shown.append({"layout": layout, "start": steps[0], "end": steps[-1] + 1})
    return shown


def last_spans(path: Path) -> list[Record]:
    """The last records of the timeline: enough to tell its clock from the scheduler's."""
    tail = Tail(path)
    try:
        tail.skip_to_last(TIMELINE_BYTES)
    except OSError:
        return []
    return [record for record in tail.read() if {"who", "start_ns", "end_ns"} <= record.keys()]
