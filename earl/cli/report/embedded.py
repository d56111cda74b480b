"""The content of a report on its run: the sections of the page, and the answers to what the page asks for.

All of it is bounded: curves are thinned, and of many conversations some are left out, which the page tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earl.cli.report.data import Record
from earl.cli.report.sections.alerts import Alerts
from earl.cli.report.sections.busy import BusyTable
from earl.cli.report.sections.encoding import encoded
from earl.cli.report.sections.history import RunHistory
from earl.cli.report.sections.outline import recorded_ledger, run_section
from earl.cli.report.sections.run_file import configuration
from earl.cli.report.sections.series import POINTS, MetricTable
from earl.cli.report.sections.trajectories import Trajectories, row, turns_of
from earl.config.run import RunConfig
from earl.stack.record import is_held, read_record
from earl.stack.status import RunStatus

# Numbers of all metrics together, and the fewest points of each.
NUMBERS, LEAST_POINTS = 60_000, 48
# Characters of all conversations together, as JSON.
TEXT_CHARACTERS = 500_000


@dataclass(frozen=True, slots=True)
class EmbeddedRun:
    """sections: as the page is told them; answers: by the name of the request; metrics: columns by name."""

    sections: Mapping[str, Any]
    answers: Mapping[str, Any]
    metrics: Mapping[str, Sequence[float]]
    trajectories: Sequence[Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """The fields by name, as they are: a copy of every trajectory would double the memory."""
        return {
            "sections": self.sections,
            "answers": self.answers,
            "metrics": self.metrics,
            "trajectories": self.trajectories,
        }


def embedded(directory: Path, config: RunConfig) -> EmbeddedRun:
    """Reads a run's directory; what it does not have is empty."""
    history = RunHistory(directory, config)
    sections: dict[str, Any] = {}
    while changed := history.update():
        sections |= changed
    state = "running" if is_running(directory) else "ended"
    status = status_of(directory, config)
    sections["run"] = run_section(directory, config, status, state, history.last)
    sections["ledger"] = recorded_ledger(directory, state, history.last)
    sections["workers"] = {"state": "ended", "rows": []}
    sections["hosts"] = {"state": "ended", "rows": [], "environments": [], "waiting": []}
    sections["tickets"] = {"state": "ended", "rows": []}
    kept = Trajectories(directory)
    sections["trajectories"] = kept.update(history.newest)
    while (again := kept.update(history.newest)) != sections["trajectories"]:
        sections["trajectories"] = again
    chosen = within(kept.kept, TEXT_CHARACTERS)
    if len(chosen) < len(kept.kept):
        left_out = (
            f"This file holds {len(chosen)} of {len(kept.kept)} trajectories, of evaluations and of steps "
            "evenly spread; samples.jsonl in the run's directory has all that were kept."
        )
        sections["trajectories"] = {**sections["trajectories"], "left_out": left_out}
    table, busy = MetricTable(directory / "metrics.jsonl"), BusyTable(directory / "timeline.jsonl")
    while table.update():
        pass
    while busy.update():
        pass
    points = max(LEAST_POINTS, min(POINTS, NUMBERS // max(1, len(table.names))))
    answers = {
        "alerts": {"rows": Alerts(directory).update()},
        "busy": busy.section(),
        "config": configuration(config),
        "keys": {"keys": table.names},
    }
    return EmbeddedRun(sections, answers, table.columns(points), [whole(record) for record in chosen])


def is_running(directory: Path) -> bool:
    """Returns whether a launcher has the run and has not recorded how it ended."""
    record = read_record(directory)
    return is_held(directory) and (record is None or not record.outcome)


def status_of(directory: Path, config: RunConfig) -> RunStatus:
    """The last status that the run's launcher recorded; an empty one if it recorded none."""
    record = read_record(directory)
    return record.status if record is not None and record.status.phase else RunStatus(run=config.name)


def whole(record: Record) -> dict[str, Any]:
    """A trajectory with its turns."""
    return {**row(record), "turns": turns_of(record)}


def within(records: Sequence[Record], characters: int) -> list[Record]:
    """Selects the records that fit into so many characters, in order: half of the space is for evaluations,
    the rest for steps evenly spread.
    """
    sizes = {id(record): len(encoded(whole(record))) for record in records}

    def fitting(groups: Sequence[Sequence[Record]], limit: float) -> list[Record]:
        most = len(groups)
        while most:
            taken = [record for group in spread(groups, most) for record in group]
            if sum(sizes[id(record)] for record in taken) <= limit:
                return taken
            most = most * 9 // 10
        return []

    evaluated, trained = grouped(records)
    if sum(sizes.values()) <= characters:
        return list(records)
    taken = fitting(evaluated, characters / 2)
    left = characters - sum(sizes[id(record)] for record in taken)
    # More single trajectories fit than whole steps.
    taken += fitting(trained, left) or fitting([[record] for group in trained for record in group], left)
    chosen = {id(record) for record in taken}
    return [record for record in records if id(record) in chosen]


def grouped(records: Sequence[Record]) -> tuple[list[list[Record]], list[list[Record]]]:
    """Records by evaluated task, and by training step."""
    evaluated: dict[Any, list[Record]] = {}
    trained: dict[Any, list[Record]] = {}
    for record in records:
        if record.get("evaluation"):
            evaluated.setdefault(record.get("index"), []).append(record)
        else:
            trained.setdefault(record.get("step"), []).append(record)
    return list(evaluated.values()), list(trained.values())


def spread(groups: Sequence[Sequence[Record]], most: int) -> list[Sequence[Record]]:
    """Selects at most `most` groups: the first, the last, and evenly spaced ones between; or the last."""
    if len(groups) <= most:
        return list(groups)
    if most == 1:
        return [groups[-1]]
    return [groups[round(place * (len(groups) - 1) / (most - 1))] for place in range(most)]
