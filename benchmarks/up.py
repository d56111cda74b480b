"""The seconds until a run that is started in the background is ready, and until nothing of it is left.

repetitions times:  earl up ─► every process is ready ─► earl stop --now ─► no process, socket, arena
                    earl up ─► … ─► earl stop ─► the same, with a checkpoint and the report
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import footprint
from benchmarks.children import last_line
from benchmarks.footprint import Place
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted
from benchmarks.record.results import publish
from earl.cli.run.demo import RUN_FILE, example
from earl.cli.run.launch import overrides_of

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "earl/stack",
    "earl/cli/run",
    "services",
)

COMMAND_S = 300.0
COMPARES = (
    "Nothing: wall clock of the commands themselves, in processes of their own, from their first line on. "
    "The demo's run file (embedded Valkey, one engine, one trainer rank, one env host), each time a new "
    "run. up_ready_s: until every process has said that it serves; down_s: until the last one has ended, "
    "after a checkpoint and the report; down_now_s: the same without waiting for a checkpoint. Medians. "
    "left: processes of the runs, and shared memory and sockets that they held, which are there after "
    "`earl stop`: found in /proc and the file system, not in what it reports."
)


@app.command(cls=RecordedOverridableCommand, epilog="Example: earl bench up --repetitions 3 --json")
def up(
    ctx: typer.Context,
    run_file: Annotated[
        Path | None, typer.Argument(metavar="[RUN.toml]", help="Run file instead of the demo's.")
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Starts and ends of each kind.")] = 5,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure how soon a run in the background is ready, and how soon nothing of it is left."""
    file = run_file or example(RUN_FILE)
    dotted = [text for key, value in overrides_of(ctx) for text in (f"--{key}", value)]
    runs: list[dict[str, Any]] = []
    mark = f"bench-{secrets.token_hex(4)}"
    for number in counted("starts and ends", range(2 * repetitions)):
        with footprint.fresh("up", f"{mark}-{number}", "*") as place:
            runs.append(measured(place, file, dotted, now=bool(number % 2)))
        sys.stderr.write(f"{json.dumps(runs[-1])}\n")
    figures = {
        "compares": COMPARES,
        "run_file": file.name,
        "up_ready_s": median(run["up_ready_s"] for run in runs),
        "down_s": median(run["down_s"] for run in runs if not run["now"]),
        "down_now_s": median(run["down_s"] for run in runs if run["now"]),
        "left": sum(len(run["left"]) for run in runs),
        "runs": runs,
    }
    publish("up", figures, results, as_json=as_json)


def median(values: Any) -> float:
    return round(statistics.median(values), 3)


def measured(place: Place, file: Path, dotted: list[str], *, now: bool) -> dict[str, Any]:
    """Figures of one start and one end. held: what the run's processes held while it ran, so that `left`
    looked for something; left: what of it and of them was there afterwards; cleaned: what `earl stop`
    reports to have removed."""
    name, directory = place.mark, str(place.directory)
    began = earl(name, "up", str(file.resolve()), "--runs-dir", directory, "--name", name, *dotted)
    before = place.measured()
    ended = earl(name, "stop", began["directory"], *(["--now"] if now else []))
    return {
        "up_ready_s": began["ready_s"],
        "down_s": ended["down_s"],
        "now": now,
        "processes": len(before.processes),
        "held": sorted(path.name for path in before.held),
        "left": place.left(),
        "cleaned": len(ended["left"]["pids"]) + len(ended["left"]["paths"]),
    }


def earl(mark: str, *arguments: str) -> dict[str, Any]:
    """The output of a command; all that it starts is marked. Raises ProcessFailed, DeadlineExceeded."""
    command = [sys.executable, "-m", "earl.cli.main", *arguments, "--json"]
    environment = os.environ | {footprint.MARK: mark}
    return json.loads(last_line(command, f"earl {arguments[0]}", COMMAND_S, env=environment))
