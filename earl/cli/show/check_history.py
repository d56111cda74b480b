"""Prove from a run's history that every ticket was trained at most once and nothing was lost."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from earl.cli.lib.find_run import RunDir, pick_run
from earl.cli.lib.notices import waiting
from earl.errors import HistoryIncomplete, HistoryViolated

app = typer.Typer(add_completion=False)
# Findings that are printed without --json.
SHOWN = 10


@app.command(epilog="Example: earl check-history tictactoe --json")
def check_history(
    run: RunDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as a JSON object.")] = False,
) -> None:
    """Prove from a run's history that every ticket was trained at most once and nothing was lost.

    It reads the files in history/ of the run's directory and nothing else, and works while the run is
    running. Exit codes: 0 proven, 28 a promise was broken, 29 nothing is wrong in what is there, and
    something is missing.
    """
    from earl.history.check import check

    directory = pick_run(run, ended=True)
    with waiting(f"reading the history of {directory}"):
        checked = check(directory)
    if as_json:
        print(json.dumps({"verdict": checked.verdict, **asdict(checked)}))
    else:
        tickets = ", ".join(f"{count} {bucket}" for bucket, count in checked.tickets.items())
        print(
            f"{checked.verdict}: {checked.events} events in {checked.rounds} rounds of {checked.segments} "
            f"segments, up to version {checked.version}; tickets: {tickets or 'none'}"
        )
        for title, findings in (("violated", checked.violations), ("missing", checked.gaps)):
            for finding in findings[:SHOWN]:
                print(f"{title}: {finding}")
            if len(findings) > SHOWN:
                print(f"{title}: {len(findings) - SHOWN} more, with --json")
    if checked.violations:
        raise HistoryViolated(
            f"the history of {directory} breaks a promise: {checked.violations[0]}",
            "keep the directory, and report it",
        )
    if checked.gaps:
        raise HistoryIncomplete(
            f"the history of {directory} proves nothing about what is missing: {checked.gaps[0]}",
            "what is there keeps the promises; raise obs.history_bytes for the next run if old segments went",
        )
