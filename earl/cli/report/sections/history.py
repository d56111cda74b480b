"""The contents of a run's files as sections of the page; read again as far as they have grown.

Curves are thinned to what a screen can show. Of a step's record only what the page needs is kept, so
memory stays bounded however long the run is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from earl.cli.lib.switches import RecordedSwitch, record_of
from earl.cli.report.curves import SMOOTHING_STEPS, TRAIN
from earl.cli.report.data import Record, flat, judged, phase_starts, start_ns, surviving, winners_in
from earl.cli.report.sections.chosen import Chosen
from earl.cli.report.sections.faults import FaultTable
from earl.cli.report.sections.layouts import bands, layout_text
from earl.cli.report.sections.lengths import columns
from earl.cli.report.sections.missing import not_measured
from earl.cli.report.sections.mixture import MixtureTable
from earl.cli.report.sections.series import fewer, thinned
from earl.config.run import RunConfig
from earl.obs.tail import Tail

# Steps that are kept.
STEPS = 40_000
# The last switches and evaluations that are listed.
LISTED = 200
CURVES = ("win_rate", "reward_mean", "staleness_mean", "staleness_max", "tokens_per_s", "entropy")
KEPT = {"step", "phase", "version", "time_s", "length_mean", "length_histogram.first", *CURVES,
        "loss_rate", "draw_rate", "length_histogram.counts", "length_histogram.per_octave"}  # fmt: skip
KEPT_GROUPS = ("transfers.", "ledger.")
FIGURES = ("win_rate", "mean_reward", "gain")
TIMELINE_BYTES = 64 << 10


class RunHistory:
    """Reads one run's directory. update: sections that may have changed, by name."""

    def __init__(self, directory: Path, config: RunConfig) -> None:
        self._config = config
        self._timeline = directory / "timeline.jsonl"
        self._metrics: list[Record] = []
        self._evaluations: list[Record] = []
        self._switches: list[RecordedSwitch] = []
        self._endings: dict[str, int] = {}
        self._chosen = Chosen()
        self._faults = FaultTable()
        self._mixture = MixtureTable(config)
        self._stores = {
            "metrics": self._metrics,
            "evaluations": self._evaluations,
            "switches": self._switches,
            "endings": self._endings,
            "decisions": self._chosen,
            "faults": self._faults,
        }
        self._tails = {name: Tail(directory / f"{name}.jsonl") for name in self._stores}
        self._begun = False

    @property
    def newest(self) -> int | None:
        """The version after the last step; None before the first."""
        return max((int(record.get("version", 0)) for record in self._metrics), default=None)

    @property
    def last(self) -> Record:
        """The record of the last step; empty before the first."""
        return self._metrics[-1] if self._metrics else {}

    def update(self) -> dict[str, Any]:
        changed = {name for name, tail in self._tails.items() if self._read(name, tail)}
        if not self._begun:
            self._begun, changed = True, set(self._tails)
        sections: dict[str, Any] = {}
        if changed & {"metrics", "evaluations"}:
            sections["learning"] = self._learning()
        if changed & {"metrics", "evaluations"} or (self._mixture.has_rows and "endings" in changed):
            evaluations = judged(self._evaluations, self.newest)
            sections["mixture"] = self._mixture.section(evaluations, winners=self._winners)
        if changed & {"metrics", "switches", "decisions"}:
            sections["lengths"] = self._lengths()
        if "decisions" in changed:
            sections["decisions"] = self._chosen.section()
        if "endings" in changed:
            sections["endings"] = self._endings
        if "faults" in changed:
            sections["faults"] = self._faults.section()
        if changed & {"metrics", "evaluations", "decisions"}:
            sections["missing"] = not_measured(
                self._config, judged(self._evaluations, self.newest), decided=bool(self._chosen.section())
            )
        if "metrics" in changed:
            sections["moved"] = self._moved()
        return sections

    def _read(self, name: str, tail: Tail) -> bool:
        new = tail.read()
        if tail.renewed:
            self._stores[name].clear()
            self._mixture.clear(name)
        if name == "metrics" and new:
            self._mixture.add_steps(new)
            steps = surviving([*self._metrics, *map(page_figures, new)])
            self._metrics[:] = fewer(steps, STEPS)
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
        elif name == "faults":
            self._faults.add(new)
        elif name == "endings":
            self._mixture.add_endings(new)
            for counts in new:
                for kind, count in counts.items():
                    if kind != "time_s" and isinstance(count, int):
                        self._endings[kind] = self._endings.get(kind, 0) + count
        return bool(new) or tail.renewed

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
            "winners": self._winners,
            "staleness_most": self._config.scheduler.staleness,
            "evaluations": [self._evaluation(evaluation) for evaluation in evaluations],
            "steps": trained[-1]["step"] if trained else 0,
            "phases": self._phases(),
        }

    def _phases(self) -> list[tuple[str, int]]:
        """(phase, Unix milliseconds at which it began)."""
        starts = phase_starts(self._metrics, list(map(flat, self._evaluations)))
        spans = last_spans(self._timeline) if starts else []
        origin_ms = start_ns(self._metrics, spans) // 10**6
        # Whole numbers: others are rounded to what a curve needs.
        return [(phase, origin_ms + round(start_s * 1e3)) for phase, start_s in starts] if spans else []

    @property
    def _winners(self) -> bool:
        evaluations = map(flat, self._evaluations)
        return winners_in(self._metrics, list(evaluations))

    def _evaluation(self, evaluation: Record) -> dict[str, Any]:
        shown = {
            key: evaluation.get(key)
            for key in ("name", "version", "episodes", "done", "failed", "gain_episodes")
        }
        shown["step"] = max(0, int(evaluation.get("version", 1)) - 1 - self._config.warmup.batches)
        shown["illegal"] = evaluation.get("metrics.illegal")
        for figure in FIGURES:
            shown[figure] = [evaluation.get(f"{figure}{end}") for end in ("", "_low", "_high")]
        return shown

    def _lengths(self) -> dict[str, Any]:
        trained = self._trained()
        drawn, per_octave = columns(trained)
        stages = sorted({stage for record in trained for stage in record.get("parallelisms", {})})
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
                        [
                            (record["step"] - 1, record.get("parallelisms", {}).get(stage, ""))
                            for record in trained
                        ]
                    ),
                }
                for stage in stages
            ],
            "switches": self._switched(trained)[-LISTED:],
        }

    def _switched(self, trained: Sequence[Record]) -> list[dict[str, Any]]:
        """All switches that ended, each with the training step before which it happened."""
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
        """Returns the reads over each path: totals, and bytes per step."""
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


def page_figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the part of a line of metrics.jsonl that the page needs, flat; `parallelisms`: that of each
    stage as text.
    """
    fields = {key: value for key, value in flat(record).items() if key in KEPT or key.startswith(KEPT_GROUPS)}
    parallelism = record.get("parallelism")
    if isinstance(parallelism, Mapping):
        fields["parallelisms"] = {
            str(stage): text for stage, degrees in parallelism.items() if (text := layout_text(degrees))
        }
    return fields


def points(records: Iterable[Record], key: str, over: str = "step") -> list[tuple[float, float]]:
    """(step or seconds, value) of the records that have both, thinned to what a screen can show."""
    return thinned(
        [
            (float(record[over]), float(record[key]))
            for record in records
            if isinstance(record.get(key), (int, float)) and isinstance(record.get(over), (int, float))
        ]
    )


def last_spans(path: Path) -> list[Record]:
    """The last records of the timeline: enough to tell its clock from the scheduler's."""
    tail = Tail(path)
    try:
        tail.skip_to_last(TIMELINE_BYTES)
    except OSError:
        return []
    return [record for record in tail.read() if {"who", "start_ns", "end_ns"} <= record.keys()]
