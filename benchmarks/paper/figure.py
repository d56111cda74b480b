"""A figure, and the results that are kept of figures: `earl bench paper` continues where it was cut off.

for each figure:  a result of this commit, machine and these settings? ─ yes ─► it is shown again
                                                                       └ no ──► measured, saved, shown
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.goals import missed_goals
from benchmarks.record.checkout import Checkout


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """A figure of the paper that can be made.

    settings: what its values depend on beside code and machine. measure: makes it. goals: by the names of its
    values, as in missed_goals; empty where the settings are not those that the goals are for.
    """

    name: str
    settings: Mapping[str, Any]
    measure: Callable[[], dict[str, Any]]
    goals: Mapping[str, float]

    @property
    def result_name(self) -> str:
        return f"paper-{self.name}"

    def made(self) -> dict[str, Any]:
        """Makes the figure; its values with settings, goals and the names of goals that it misses."""
        values = self.measure()
        return {
            "figure": self.name,
            "settings": dict(self.settings),
            "goals": dict(self.goals),
            "missed": missed_goals(values, self.goals),
            **values,
        }

    def kept(self, results: Path, state: Checkout, machine: Mapping[str, Any]) -> dict[str, Any] | None:
        """The newest result in this directory with the same settings, of this commit and machine.

        None where there is none, and for a working tree that differs from its commit.
        """
        if state.commit is None or state.changes:
            return None
        same = {"commit": state.commit, "machine": dict(machine), "settings": dict(self.settings)}
        # As they are read back: a tuple comes back as a list.
        same = json.loads(json.dumps(same))
        for path in sorted(results.glob(f"{self.result_name}-*.json"), reverse=True):
            result = json.loads(path.read_text(encoding="utf-8"))
            if all(result.get(name) == value for name, value in same.items()):
                return {**result, "file": path.name}
        return None
