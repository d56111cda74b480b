"""Write a run's HTML report again, from what its directory holds."""

from __future__ import annotations

import json

import typer

from earl.cli.lib.find_run import AsJson, RunDir, pick_run
from earl.cli.lib.notices import waiting
from earl.cli.report.page import write_report

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: earl report tictactoe")
def report(
    run: RunDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's HTML report again, from what its directory holds; prints its path."""
    directory = pick_run(run, ended=True)
    with waiting(f"writing the report of {directory}"):
        path = write_report(directory)
    print(json.dumps({"report": str(path)}) if as_json else path)
