"""The times that a newcomer waits: README's commands, typed in a fresh clone of this checkout.

    git clone ─► make setup-demo ─► make demo ─► (the curve rises) ─► its end ─► earl --help, up, status, top

The same is measured of an earlier commit. Everything happens in a directory that is removed at the end, with
whatever was started in it.
"""

from __future__ import annotations

import json
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
from benchmarks.every_day import TOP_S, TYPED, every_day
from benchmarks.footprint import MARK, Place
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.checkout import ROOT
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import phase
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

# Goals of the figures with these names: seconds, megabytes (10^6 bytes), fractions. The win rate is to be at
# least its goal, all others at most theirs.
GOALS = {
    "setup_mb": 1300.0, "setup_s": 40.0, "risen_s": 90.0, "total_s": 220.0, "win_rate": 0.95,
    "help_s": 0.4, "status_s": 1.0, "top_core": 0.02,
}  # fmt: skip
# The commit that the figures stand beside: the last one before installing and starting were made short.
BEFORE = "f82d364"
# Training steps whose mean win rate is compared with the start evaluation.
WINDOW_STEPS = 8
POLL_S = 0.25
# Between two readings of /proc, which cost processor time.
OBSERVE_S = 5.0
# The longest that one command may take.
COMMAND_S = 3600.0
TAIL_LINES = 20
COMPARES = (
    "This checkout's HEAD and, in the same hour, the commit under `before`: wall clock of README's commands "
    "as a newcomer types them, in a clone (git clone --no-hardlinks from this disk): make setup-demo (make "
    "setup where there is no such target), make demo. All is made new but what pip has kept of packages: its "
    "cache is this user's and warm, so that setup_s is installation and not a network. risen_s: from the "
    f"clone's beginning until the mean win rate of the last {WINDOW_STEPS} training steps is above the 95 % "
    "interval of the evaluation before the first one, by the demo's metrics.jsonl and evaluations.jsonl; "
    "total_s: until the demo has ended by itself, its final evaluation and its report included; setup_mb: "
    f"what the virtual environment takes after the demo. help_s, status_s: medians of {TYPED} calls, status "
    f"of a run in progress; top_core: processor time of `earl top` over {TOP_S:g} s of that run, after its "
    "start. No view of the demo is drawn: its output goes to a file. (Results up to 2026-11-23 11:30 have "
    "neither `before` nor setup_mb, help_s, status_s, top_core; those up to 2026-11-22 have curve_s instead "
    "of risen_s: until the first step that won more often than the first one by 0.1.)"
)


@app.command(cls=RecordedCommand, epilog="Example: earl bench newcomer --json")
def newcomer(as_json: AsJson = False, results: Results = RESULTS) -> None:
    """Measure what a newcomer waits for: git clone, installation, make demo, and until the curve rises.

    Takes all cores for as long as these take together, twice: the second time for the commit of `before`.
    Takes gigabytes where temporary files lie ($TMPDIR).
    """
    now = measured(ROOT)
    before = measured(ROOT, BEFORE)
    figures = {"compares": COMPARES, **now, "before": {"commit": BEFORE, **before}, "goals": GOALS}
    publish("newcomer", {**figures, "missed": missed(now)}, results, as_json=as_json)


def missed(figures: Mapping[str, Any]) -> list[str]:
    """Names of the goals that the figures do not meet; one without a figure is missed."""
    names = []
    for name, goal in GOALS.items():
        value = figures.get(name)
        if value is None or (value < goal if name == "win_rate" else value > goal):
            names.append(name)
    return names


def measured(checkout: Path, commit: str = "") -> dict[str, Any]:
    """Types the commands in a clone of any checkout whose make knows setup and demo, and returns the figures.

    commit: checked out in the clone; empty: the checkout's HEAD. left: how many processes, sockets and files
    of shared memory were still there at the end. Raises ProcessFailed with the last output of a command that
    fails. Nothing stays, whatever happens.
    """
    mark = uuid.uuid4().hex

    def enter(number: int, doing: str) -> None:
        phase(f"{doing}, of {commit or 'this checkout'} ({number} of 4)")

    with footprint.fresh("newcomer", mark, "earl/runs/*") as place:
        clone = place.directory / "earl"
        session = NewcomerSession(environment(mark), place, clone)
        cloning = ["git", "clone", "--quiet", "--no-hardlinks", str(checkout), str(clone)]
        enter(1, "git clone")
        session.type("clone", cloning, place.directory)
        if commit:
            subprocess.run(["git", "-C", str(clone), "checkout", "--quiet", commit], check=True)
        enter(2, f"make {setup_target(clone)}")
        session.type("setup", ["make", setup_target(clone)], clone)
        enter(3, "make demo")
        session.type("demo", ["make", "demo"], clone)
        figures = session.figures() | {"left": len(place.left())}
        enter(4, "--help, status and top")
        earl = clone / ".venv" / "bin" / "earl"
        return figures | (every_day(earl, clone, session.environment) if earl.exists() else {})


def setup_target(clone: Path) -> str:
    """The target that installs what the demo needs, and no more if there is one for that."""
    return "setup-demo" if "\nsetup-demo:" in (clone / "Makefile").read_text(encoding="utf-8") else "setup"


class NewcomerSession:
    """Types commands one after the other and measures how long each takes, in seconds."""

    def __init__(self, environment: Mapping[str, str], place: Place, clone: Path) -> None:
        self.environment, self._place, self._clone = environment, place, clone
        self._log = place.directory / "output.log"
        self._observed_s = -OBSERVE_S
        self._began_s = time.monotonic()
        self._phases: dict[str, float] = {}
        self._risen_s: float | None = None
        self._rise: dict[str, Any] | None = None

    def type(self, name: str, command: list[str], directory: Path) -> None:
        """Runs a command to its end. Raises ProcessFailed if it fails or takes longer than COMMAND_S."""
        began_s = time.monotonic()
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                command, cwd=directory, env=dict(self.environment), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        while (code := self._exit_code(process)) is None:
            self._observe()
            if time.monotonic() - began_s > COMMAND_S:
                raise self._failed(name, command, f"has not ended within {COMMAND_S:g} s")
        if code:
            raise self._failed(name, command, f"ended with {code}")
        self._observe()
        self._phases[f"{name}_s"] = time.monotonic() - began_s
        sys.stderr.write(f"{' '.join(command[:2])}: {self._phases[f'{name}_s']:.1f} s\n")

    def _exit_code(self, process: subprocess.Popen[bytes]) -> int | None:
        """The exit code; None if the process is still running after POLL_S."""
        try:
            return process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            return None

    def _observe(self) -> None:
        """Notes when the curve has risen, and which processes the commands have started."""
        if time.monotonic() - self._observed_s > OBSERVE_S:
            self._place.measured()
            self._observed_s = time.monotonic()
        for run in runs(self._clone) if self._risen_s is None else ():
            steps = read_lines(run / "metrics.jsonl")
            if rise := risen(steps, read_lines(run / "evaluations.jsonl")):
                self._risen_s, self._rise = time.monotonic() - self._began_s, rise

    def _failed(self, name: str, command: list[str], how: str) -> ProcessFailed:
        output = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        error = ProcessFailed(
            f"{name}: `{' '.join(command[:2])}` {how}" + (f": {output[-1].strip()}" if output else ""),
            "nothing was written; type it in a clone of your own to see all that it says",
        )
        error.add_note("\n".join(output))
        return error

    def figures(self) -> dict[str, Any]:
        """Seconds, megabytes and rates; what there was none of is null."""
        written = [run / "result.json" for run in runs(self._clone) if (run / "result.json").is_file()]
        results = [json.loads(file.read_text(encoding="utf-8")) for file in written]
        return {
            "setup_mb": megabytes(self._clone / ".venv"),
            "win_rate": results[0]["win_rate"] if results else None,
            **{name: round(seconds, 1) for name, seconds in self._phases.items()},
            "total_s": round(sum(self._phases.values()), 1),
            "risen_s": None if self._risen_s is None else round(self._risen_s, 1),
            "rise": self._rise,
        }


def risen(
    steps: Iterable[Mapping[str, Any]], evaluations: Iterable[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The first training step at which the mean win rate of the last WINDOW_STEPS steps is above the 95 %
    interval of the evaluation before training; None if there is no such step.

    steps: lines of metrics.jsonl; evaluations: lines of evaluations.jsonl, of which the one named "start"
    counts.
    """
    start = next((line for line in evaluations if line["name"] == "start"), None)
    if start is None:
        return None
    last: list[float] = []
    for line in steps:
        rate = line.get("win_rate")
        if line.get("phase") != "train" or rate is None:
            continue
        last = [*last, rate][-WINDOW_STEPS:]
        mean = sum(last) / len(last)
        if len(last) == WINDOW_STEPS and mean > start["win_rate_high"]:
            return {
                "step": line["step"],
                "win_rate_mean": round(mean, 4),
                "start_win_rate": start["win_rate"],
                "start_win_rate_high": start["win_rate_high"],
            }
    return None


def megabytes(directory: Path) -> int:
    """Returns the disk space of the files of a directory, in units of 10^6 bytes; a hard link counts once."""
    blocks = {file.lstat().st_ino: file.lstat().st_blocks for file in directory.rglob("*")}
    return round(sum(blocks.values()) * 512 / 1e6)


def runs(clone: Path) -> list[Path]:
    return sorted(path for path in clone.glob("runs/*") if path.is_dir())


def environment(mark: str) -> dict[str, str]:
    """The environment of a shell without this checkout's packages and without a make above it."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("EARL_", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKE", "MFLAGS"))
    }
    within = Path(sys.prefix) / "bin" if sys.prefix != sys.base_prefix else None
    paths = [place for place in os.environ.get("PATH", "").split(os.pathsep) if Path(place) != within]
    return inherited | {"PATH": os.pathsep.join(paths), MARK: mark}
