"""What a newcomer waits for: README's commands, typed in a fresh clone of this checkout.

    git clone ─► make setup ─► make demo ─► (the curve rises) ─► its end

Everything happens in a directory that goes with what was started in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from benchmarks import footprint
from benchmarks.footprint import MARK, Place
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.checkout import ROOT
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.results import publish
from earl.errors import ProcessFailed
from earl.obs.metrics import read_lines

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/dispatch",
    "earl/models",
    "earl/env",
    "earl/stack",
    "examples/tictactoe.toml",
    "tools/install.py",
)

GOAL_S = 600.0
# The curve rises once a step wins this much more often than the first one.
RISE = 0.1
POLL_S = 0.25
# Between looks at what goes on, which cost processor time.
LOOK_S = 5.0
# Of each phase, at most.
BOUND_S = 3600.0
TAIL_LINES = 20
COMPARES = (
    "Nothing: wall clock of README's commands as a newcomer types them, one after the other, in a clone of "
    "this checkout's HEAD (git clone --no-hardlinks from this disk): make setup, make demo. All is made anew "
    "but what pip has kept of packages: its cache is this user's and warm, so that setup_s is installation "
    "and not a network. curve_s: from the clone's beginning until the first training step whose win rate is "
    f"above the first step's by {RISE:g}, as the demo's metrics.jsonl has it; total_s: until the demo has "
    "ended by itself, its final evaluation and its report included. No view is drawn: its output goes to a "
    "file."
)


@app.command(cls=RecordedCommand, epilog="Example: earl bench newcomer --json")
def newcomer(as_json: AsJson = False, results: Results = RESULTS) -> None:
    """What a newcomer waits for: git clone, make setup, make demo, and until the curve rises.

    Takes all cores for as long as these take together, and gigabytes where temporary files lie ($TMPDIR).
    """
    publish("newcomer", {"compares": COMPARES, **measured(ROOT)}, results, as_json=as_json)


def measured(checkout: Path) -> dict[str, Any]:
    """The figures, of any checkout whose make knows setup and demo. left: how much went on or stayed.

    Raises ProcessFailed with what a phase said last if it fails. Nothing stays, whatever happens.
    """
    mark = uuid.uuid4().hex
    with footprint.fresh("newcomer", mark, "earl/runs/*") as place:
        clone = place.directory / "earl"
        waits = Waits(environment(mark), place, clone)
        clones = ["git", "clone", "--quiet", "--no-hardlinks", str(checkout), str(clone)]
        waits.types("clone", clones, place.directory)
        waits.types("setup", ["make", "setup"], clone)
        waits.types("demo", ["make", "demo"], clone)
        left = len(place.left())
    return {**waits.figures(), "goal_s": GOAL_S, "left": left}


class Waits:
    """Who types, and how long each command took, in seconds."""

    def __init__(self, environment: Mapping[str, str], place: Place, clone: Path) -> None:
        self._environment, self._place, self._clone = environment, place, clone
        self._log = place.directory / "said.log"
        self._looked_s = -LOOK_S
        self._began_s = time.monotonic()
        self._phases: dict[str, float] = {}
        self._curve_s: float | None = None
        self._rise: dict[str, Any] = {}

    def types(self, phase: str, command: list[str], here: Path) -> None:
        """Until it ends. Raises ProcessFailed if it fails or takes longer than BOUND_S."""
        began_s = time.monotonic()
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                command, cwd=here, env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        while (code := self._ended(process)) is None:
            self._look()
            if time.monotonic() - began_s > BOUND_S:
                raise self._failed(phase, command, f"has not ended within {BOUND_S:g} s")
        if code:
            raise self._failed(phase, command, f"ended with {code}")
        self._look()
        self._phases[f"{phase}_s"] = time.monotonic() - began_s
        sys.stderr.write(f"{' '.join(command[:2])}: {self._phases[f'{phase}_s']:.1f} s\n")

    def _ended(self, process: subprocess.Popen[bytes]) -> int | None:
        """Its exit code; None if it goes on for POLL_S."""
        try:
            return process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            return None

    def _look(self) -> None:
        """Whether the curve has risen by now, and who takes part in it."""
        if time.monotonic() - self._looked_s > LOOK_S:
            self._place.look()
            self._looked_s = time.monotonic()
        for run in runs(self._clone) if self._curve_s is None else ():
            if rise := risen(read_lines(run / "metrics.jsonl")):
                self._curve_s, self._rise = time.monotonic() - self._began_s, rise

    def _failed(self, phase: str, command: list[str], how: str) -> ProcessFailed:
        said = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        error = ProcessFailed(
            f"{phase}: `{' '.join(command[:2])}` {how}" + (f": {said[-1].strip()}" if said else ""),
            "nothing was written; type it in a clone of your own to see all that it says",
        )
        error.add_note("\n".join(said))
        return error

    def figures(self) -> dict[str, Any]:
        """Seconds; curve_s and what belongs to it are null if the curve never rose."""
        return {
            **{name: round(seconds, 1) for name, seconds in self._phases.items()},
            "total_s": round(sum(self._phases.values()), 1),
            "curve_s": None if self._curve_s is None else round(self._curve_s, 1),
            "curve": self._rise or None,
        }


def risen(records: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The first training step whose win rate is above the first one's by RISE: both rates and its number."""
    first: float | None = None
    for record in records:
        rate = record.get("win_rate")
        if record.get("phase") != "train" or rate is None:
            continue
        if first is None:
            first = rate
        elif rate > first + RISE:
            return {"step": record["step"], "win_rate": rate, "win_rate_first": first}
    return None


def runs(clone: Path) -> list[Path]:
    return sorted(path for path in clone.glob("runs/*") if path.is_dir())


def environment(mark: str) -> dict[str, str]:
    """Of a shell that knows nothing of this checkout's virtual environment, nor of a make above."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("EARL_", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKE", "MFLAGS"))
    }
    within = Path(sys.prefix) / "bin" if sys.prefix != sys.base_prefix else None
    paths = [place for place in os.environ.get("PATH", "").split(os.pathsep) if Path(place) != within]
    return own | {"PATH": os.pathsep.join(paths), MARK: mark}
