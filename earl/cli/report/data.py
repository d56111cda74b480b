"""The record of a run in its directory: records of its JSON-lines files, as plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from earl.cli.lib.decisions import DecisionRecord, read_decisions
from earl.cli.lib.run_directory import config_of
from earl.config.run import RunConfig
from earl.obs.metrics import flat, read_lines
from earl.obs.outcomes import has_winners
from earl.stack.run_files import FAILURE, RESULT, read_object

Record = Mapping[str, Any]
Spans = dict[str, list[tuple[str, float, float]]]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The data of a comparison or a trace. spans: who → (what, start, end) in seconds of the run."""

    directory: Path
    config: RunConfig
    metrics: Sequence[Record]
    evaluations: Sequence[Record]
    spans: Spans
    result: Record
    # The selector's decisions by stage.
    decisions: Mapping[str, Sequence[DecisionRecord]] = field(default_factory=dict)
    # How episodes ended, over time.
    endings: Sequence[Record] = ()
    # Changes of parallelism that were executed, well or not; time_s: at which they ended, about.
    switches: Sequence[Record] = ()
    # What its last launch failed with: error, message, exit_code.
    failure: Record = field(default_factory=dict)

    def points(self, key: str, *, phase: str = "", over: str = "step") -> list[tuple[float, float]]:
        """(step or seconds, value) of every record of a phase that has the key."""
        return [
            (float(record[over]), float(record[key]))
            for record in self.metrics
            if (not phase or record.get("phase") == phase)
            and isinstance(record.get(key), (int, float))
            and over in record
        ]


def read_run(directory: Path) -> RecordedRun:
    """Reads a run's directory; ConfigError if it is none. A broken result or failure is logged."""
    config = config_of(directory)
    metrics = surviving(flat(record) for record in read_lines(directory / "metrics.jsonl"))
    newest = max((int(record.get("version", 0)) for record in metrics), default=None)
    spans = list(read_lines(directory / "timeline.jsonl"))
    origin_ns = start_ns(metrics, spans)
    return RecordedRun(
        directory=directory,
        config=config,
        metrics=metrics,
        evaluations=judged(read_lines(directory / "evaluations.jsonl"), newest),
        spans=in_seconds(spans, origin_ns),
        result=read_object(directory / RESULT, warn=True),
        decisions=read_decisions(directory),
        endings=list(read_lines(directory / "endings.jsonl")),
        switches=timed(read_lines(directory / "switches.jsonl"), origin_ns),
        failure=read_object(directory / FAILURE, warn=True),
    )


def winners_in(metrics: Sequence[Record], evaluations: Iterable[Record]) -> bool:
    """`has_winners` of a run's records, flat."""
    given = {key.removeprefix("metrics.") for record in evaluations for key in record if "metrics." in key}
    return has_winners(metrics[-1] if metrics else (), given)


def surviving(metrics: Iterable[Record]) -> list[Record]:
    """The steps that are in the parameters: a line takes back every earlier one of its version or newer.

    Each step makes one version, and after a roll-back the steps since are done again.
    """
    out: list[Record] = []
    for record in metrics:
        while out and out[-1].get("version", 0) >= record.get("version", math.inf):
            out.pop()
        out.append(record)
    return out


def judged(evaluations: Iterable[Record], newest: int | None) -> list[Record]:
    """Evaluations in the order of the run, the last of each name.

    newest: version after the run's last step; what was judged of a version beyond it was rolled back.
    """
    last = {record.get("name"): flat(record) for record in evaluations}
    kept = [record for record in last.values() if newest is None or record.get("version", 0) <= newest]
    return sorted(kept, key=lambda record: (record.get("version", 0), record.get("name") == "final"))


def kept_samples(samples: Iterable[Record], newest: int | None) -> list[Record]:
    """Conversations in order of their steps, then evaluations, without what was rolled back.

    newest: as for `judged`. Of an instance of an evaluation the last line counts, as of a ticket.
    """
    trained: list[Record] = []
    evaluated: dict[tuple[str, int], Record] = {}
    for record in samples:
        step, evaluation = record.get("step", 0), record.get("evaluation")
        if evaluation:
            evaluated[evaluation, record.get("index", 0)] = record
            continue
        while trained and trained[-1].get("step", 0) > step:
            trained.pop()
        if not trained or trained[-1].get("ticket") != record.get("ticket"):
            trained.append(record)
    every = [*evaluated.values(), *trained]
    kept = [record for record in every if newest is None or max(record.get("version", [0])) <= newest]
    return sorted(kept, key=lambda record: (record.get("step", 0), bool(record.get("evaluation"))))


def start_ns(metrics: Sequence[Record], spans: Sequence[Record]) -> int:
    """Unix time at which the scheduler's clock (`time_s`) stood at 0, about.

    The last step is recorded when its commit arrives, right after the trainer's last span.
    """
    if not spans:
        return 0
    ends = [int(span["end_ns"]) for span in spans if span["who"] == "trainer"]
    if not ends or not metrics:
        return min(int(span["start_ns"]) for span in spans)
    return max(ends) - int(float(metrics[-1].get("time_s", 0.0)) * 1e9)


def phase_starts(metrics: Sequence[Record], evaluations: Sequence[Record]) -> list[tuple[str, float]]:
    """(phase, second it began): a phase begins where the one before it recorded its end."""
    ends: dict[str, float] = {}
    for record in metrics:
        if "time_s" in record:
            ends[str(record.get("phase"))] = float(record["time_s"])
    for record in evaluations:
        if record.get("name") in ("start", "final") and "time_s" in record:
            ends[f"evaluate:{record['name']}"] = float(record["time_s"])
    order = sorted(ends, key=lambda phase: ends[phase])
    return list(zip(order, [0.0, *(ends[phase] for phase in order)], strict=False))


def timed(records: Iterable[Record], origin_ns: int) -> list[Record]:
    """Records with an end_ns, with their time_s in seconds since the origin."""
    return [{**record, "time_s": (int(record["end_ns"]) - origin_ns) / 1e9} for record in records]


def in_seconds(spans: Sequence[Record], origin_ns: int) -> Spans:
    """Spans by worker, in seconds since the origin, workers in order of their names."""
    out: Spans = {}
    for span in spans:
        start, end = ((int(span[key]) - origin_ns) / 1e9 for key in ("start_ns", "end_ns"))
        out.setdefault(str(span["who"]), []).append((str(span["what"]), start, end))
    return dict(sorted(out.items()))
