"""The demo's learning figures over several seeds: win rate, illegal moves, seconds."""

from __future__ import annotations

import statistics
from typing import Any

import typer

from benchmarks.learning import over_seeds, published
from benchmarks.options import RESULTS, AsJson, Results, Seeds, whole_numbers
from benchmarks.record.overridable import RecordedOverridableCommand
from earl.cli.run.demo import demo_config
from earl.cli.run.launch import overrides_of

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/dispatch",
    "earl/models",
    "earl/env",
    "earl/stack",
    "examples/tictactoe.toml",
)


@app.command(cls=RecordedOverridableCommand)
def demo(
    ctx: typer.Context, seeds: Seeds = "0,1,2", as_json: AsJson = False, results: Results = RESULTS
) -> None:
    """Measure the demo's learning over several seeds: win rate, illegal moves, seconds.

    Each seed is a whole run in new processes, one after the other, as `earl demo` makes it.
    """
    runs: list[dict[str, Any]] = []
    with published("demo", {}, runs, summary, results, as_json=as_json):
        over_seeds(whole_numbers(seeds), lambda seed: demo_config(seed, overrides_of(ctx)), runs)


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The worst seed decides: that is what a newcomer may get. Rates 0..1, seconds of wall clock."""
    return {
        "win_rate_min": min(run["win_rate"] for run in runs),
        "win_rate_median": statistics.median(run["win_rate"] for run in runs),
        "illegal_rate_max": max(run["illegal_rate"] for run in runs),
        "start_win_rate_max": max(run["start_win_rate"] for run in runs),
        "seconds_max": max(run["seconds"] for run in runs),
    }
