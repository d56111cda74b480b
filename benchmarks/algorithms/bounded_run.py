"""A whole run in a process of its own, `earl train`, that ends in bounded time: a failure is an outcome.

run file ─► earl train ─► its directory                         complete
                ├─ ends with an error ─► the last line of it    failed
                └─ runs past the limit ─► SIGTERM, SIGKILL      failed
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.algorithms.step_actions import StepAction, StepActions
from earl.config.run import RunConfig
from earl.stack.rundir import run_path, to_toml

# From SIGTERM to the stack's end, at most: the launcher's own stop_s, a checkpoint and the report.
STOP_S = 90.0


@dataclass(frozen=True, slots=True)
class BoundedRun:
    """directory: of the run, which need not be there. seconds: wall clock. failure: "" if it is complete."""

    directory: Path
    seconds: float
    failure: str

    @property
    def model(self) -> Path:
        """The directory of the exported model."""
        return self.directory / "model-final"


def bounded_run(config: RunConfig, limit_s: float, actions: Sequence[StepAction] = ()) -> BoundedRun:
    """Runs `earl train` on this configuration to its end, or stops it after `limit_s` seconds.

    Whatever the run does, it returns; the run is also stopped where the waiting is interrupted. actions: that
    are carried out meanwhile; one that fails, or for which the run is too short, is a failure of the run.
    """
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="earl-bench-") as made:
        run_file, output = Path(made) / "run.toml", Path(made) / "output.log"
        run_file.write_text(to_toml(config.model_dump(mode="json")), encoding="utf-8")
        command = [sys.executable, "-m", "earl.cli.main", "train", str(run_file), "--plain"]
        with output.open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        acting = StepActions(run_path(config).absolute(), actions)
        acting.start()
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _stop(process)
            not_done = acting.end()
        failure = "; ".join(not_done) if code == 0 else _failure(code, output, limit_s)
    return BoundedRun(run_path(config).absolute(), time.monotonic() - began_s, failure)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failure(code: int | None, output: Path, limit_s: float) -> str:
    """One line about a run that is not complete. code: None: it ran past the limit."""
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [line for line in lines if "error: " in line]
    last = (errors or lines or ["it printed nothing"])[-1].strip()
    return f"ran longer than {limit_s:g} s: {last}" if code is None else f"ended with {code}: {last}"
