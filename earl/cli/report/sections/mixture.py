"""Each environment of a mixture: its weight, its figures in the last steps, its last evaluation, its endings.
Each seat of self-play: how it did in the last steps.

    metrics.jsonl ─► the last WINDOW steps, and how much was trained in all ┐
    evaluations.jsonl ─► its last figures with their intervals              ├─► a row for each environment
    endings.jsonl ─► how its episodes ended                                 │
    run.json ─► its weight ─────────────────────────────────────────────────┘
    metrics.jsonl ─► the last WINDOW steps ───────────────────────────────────► a row for each seat

The last KEPT steps can be taken back by a roll-back; of older ones only a sum is kept, so that memory stays
bounded. A run of one environment has no rows of environments, and one without self-play none of seats.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from earl.cli.lib.mixture_figures import by_environment, by_seat
from earl.cli.report.curves import SMOOTHING_STEPS, TRAIN
from earl.cli.report.data import Record, flat
from earl.config.mixture import MixtureEntry
from earl.config.run import RunConfig
from earl.config.weight import weight_at

# Steps that the figures are over, and steps that are kept to be taken back.
WINDOW, KEPT = SMOOTHING_STEPS, 256
# Figures of a step that are means over its trajectories, and those that are maxima.
MEANS = ("reward_mean", "win_rate", "length_mean", "staleness_mean")
MAXIMA = ("length_max", "staleness_max")
SEAT_MEANS = ("reward_mean", "win_rate", "turns_mean")
EVALUATED = ("win_rate", "mean_reward", "gain", "kept")

Figures = Mapping[str, float]


class MixtureTable:
    """The rows of one run, which grow with its files."""

    def __init__(self, config: RunConfig) -> None:
        entries = config.mixture
        self._entries: Sequence[MixtureEntry] = entries if len(entries) > 1 else ()
        self._reads_steps = len(entries) > 1 or any(entry.seats > 1 for entry in entries)
        # The last steps; the trajectories of older ones by label.
        self._steps: deque[_Step] = deque()
        self._older: Counter[str] = Counter()
        self._endings: dict[str, Counter[str]] = {}

    @property
    def has_rows(self) -> bool:
        """Returns whether the run has several environments."""
        return bool(self._entries)

    def clear(self, file: str) -> None:
        """Forgets what was read from a file, "metrics" or "endings", that is another one now."""
        if file == "metrics":
            self._steps.clear()
            self._older.clear()
        elif file == "endings":
            self._endings.clear()

    def add_steps(self, records: Iterable[Record]) -> None:
        """Reads lines of metrics.jsonl. One takes back every step of its version or a newer one."""
        for record in map(flat, records) if self._reads_steps else ():
            version = float(record.get("version", 0))
            while self._steps and self._steps[-1].version >= version:
                self._steps.pop()
            if record.get("phase") != TRAIN:
                continue
            numbers = _numbers(record)
            step = int(record.get("step", 0))
            self._steps.append(_Step(version, step, by_environment(numbers), by_seat(numbers)))
            if len(self._steps) > KEPT:
                for label, figures in self._steps.popleft().environments.items():
                    self._older[label] += int(figures.get("sequences", 0))

    def add_endings(self, lines: Iterable[Record]) -> None:
        """Reads lines of endings.jsonl."""
        for line in lines if self._entries else ():
            for label, counts in line.get("environments", {}).items():
                self._endings.setdefault(label, Counter()).update(counts)

    def section(self, evaluations: Sequence[Record], *, winners: bool) -> dict[str, Any]:
        """The rows as JSON. evaluations: flat, in the order of the run; winners: whether episodes are won or
        lost."""
        judged = [record for record in evaluations if by_environment(_numbers(record))]
        last = by_environment(_numbers(judged[-1])) if judged else {}
        trained = Counter(self._older)
        for step in self._steps:
            trained.update(
                {label: int(figures.get("sequences", 0)) for label, figures in step.environments.items()}
            )
        weights = self._weights()
        return {
            "steps": min(WINDOW, len(self._steps)),
            "winners": winners,
            "evaluation": judged[-1].get("name", "") if judged else "",
            "rows": [
                {
                    "label": entry.label,
                    "weight": weights[entry.label],
                    "trained": trained[entry.label],
                    "trained_share": trained[entry.label] / (trained.total() or 1),
                    **self._recent(entry.label),
                    "evaluated": _intervals(last.get(entry.label, {})),
                    "endings": dict(self._endings.get(entry.label, {})),
                }
                for entry in self._entries
            ],
            "seats": self._seats(),
        }

    def _weights(self) -> dict[str, float]:
        """The part of the groups that each environment has at the last step, as the run file says."""
        step = max(0, self._steps[-1].step - 1) if self._steps else 0  # weights count steps from 0
        shares = {
            entry.label: weight_at(entry.schedule, step) if entry.schedule else entry.share
            for entry in self._entries
        }
        total = sum(shares.values()) or 1.0
        return {label: share / total for label, share in shares.items()}

    def _recent(self, label: str) -> dict[str, float | None]:
        """The figures of the last WINDOW steps, as of one batch; None where no group of it was among them."""
        steps = [step.environments[label] for step in self._window() if label in step.environments]
        counts = [figures.get("sequences", 0.0) for figures in steps]
        total = sum(counts)
        if not total:
            return dict.fromkeys((*MEANS, *MAXIMA, "truncated_share"))
        means = {
            name: sum(figures.get(name, 0.0) * count for figures, count in zip(steps, counts, strict=True))
            / total
            for name in MEANS
        }
        maxima = {name: max(figures.get(name, 0.0) for figures in steps) for name in MAXIMA}
        truncated = sum(figures.get("truncated_episodes", 0.0) for figures in steps)
        return {**means, **maxima, "truncated_share": truncated / total}

    def _seats(self) -> list[dict[str, Any]]:
        """Rows of the seats in the last WINDOW steps, each step counting the same."""
        steps: dict[tuple[str, int], list[Figures]] = {}
        for step in self._window():
            for label, seats in step.seats.items():
                for seat, figures in seats.items():
                    steps.setdefault((label, seat), []).append(figures)
        return [
            {"label": label, "seat": seat}
            | {name: sum(step.get(name, 0.0) for step in of_seat) / len(of_seat) for name in SEAT_MEANS}
            for (label, seat), of_seat in sorted(steps.items())
        ]

    def _window(self) -> list[_Step]:
        return list(self._steps)[-WINDOW:]


class _Step(NamedTuple):
    """A training step's figures: of environments by label, of seats by label and seat."""

    version: float
    step: int
    environments: Mapping[str, Figures]
    seats: Mapping[str, Mapping[int, Figures]]


def _intervals(figures: Figures) -> dict[str, list[float | None]]:
    """[value, low, high] of each evaluated figure that is known."""
    return {
        name: [figures.get(f"{name}{end}") for end in ("", "_low", "_high")]
        for name in EVALUATED
        if name in figures
    }


def _numbers(record: Record) -> dict[str, float]:
    return {name: value for name, value in record.items() if isinstance(value, (int, float))}
