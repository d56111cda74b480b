"""The demo's learning figures over several seeds: win rate, illegal moves, seconds."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.machine import commit, machine
from earl.cli.demo import demo_config
from earl.cli.figures import figures
from earl.cli.run import INTERRUPTED, OverridableCommand, overrides_of, resume_hint, run_to_end

app = typer.Typer(add_completion=False)

RESULTS = Path(__file__).resolve().parent / "results"


@app.command(cls=OverridableCommand)
def demo(
    ctx: typer.Context,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    results: Annotated[Path, typer.Option(help="Directory that the result is written to.")] = RESULTS,
) -> None:
    """The demo's learning figures over several seeds: win rate, illegal moves, seconds.

    Each seed is a whole run in new processes, one after the other, as `earl demo` makes it.
    """
    try:
        numbers = [int(text) for text in seeds.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{seeds!r} is no list of whole numbers such as 0,1,2") from None
    runs: list[dict[str, Any]] = []
    for seed in numbers:
        started_at = time.monotonic()
        outcome = run_to_end(
            demo_config(seed, overrides_of(ctx)), resume=False, plain=False, started_at=started_at
        )
        if not outcome.complete:
            sys.stderr.write(f"earl: seed {seed} was stopped; {resume_hint(outcome)}\n")
            raise typer.Exit(INTERRUPTED)
        runs.append(figures(outcome, seed))
    result = {"benchmark": "demo", "commit": commit(), "machine": machine(), "runs": runs, **summary(runs)}
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"demo-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stderr.write(f"written: {path}\n")
    if as_json:
        print(json.dumps(result))


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The worst seed decides: that is what a newcomer may get. Rates 0..1, seconds of wall clock."""
    return {
        "win_rate_min": min(run["win_rate"] for run in runs),
        "win_rate_median": statistics.median(run["win_rate"] for run in runs),
        "illegal_rate_max": max(run["illegal_rate"] for run in runs),
        "start_win_rate_max": max(run["start_win_rate"] for run in runs),
        "seconds_max": max(run["seconds"] for run in runs),
    }
