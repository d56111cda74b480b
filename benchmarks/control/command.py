"""The rate that the scheduler and its ledger sustain, and whether every ticket exists exactly once."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.control import measure
from benchmarks.control.processes import ControlLoad
from benchmarks.mixture_cost import Environments, MixtureRounds, parts_to_measure
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.results import publish

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/scheduler/state",
    "services/scheduler/ledger",
    "services/scheduler/batches",
    "services/scheduler/journal",
    "services/scheduler/monitor",
    "services/scheduler/files",
    "services/scheduler/api",
    "earl/bus",
    "earl/rpc",
)

PARTS = ("steady", "most", "drill", "script")
MEASURES = (
    "A real scheduler process with its real Valkey (appendfsync always), simulated rollout workers in a few "
    "processes and a simulated trainer, over real gRPC. Each worker leases `credit` tickets in one call, "
    "holds them for hold_s, reports them in one call, heartbeats when the scheduler wants it, and renews; "
    "the trainer commits each batch at once, publishes a version and records a checkpoint every few batches. "
    "A ticket counts when it is trained (issued, leased, completed, planned, committed, each stored before "
    "it was answered) or evaluated. steady: the workers' cycles ask for `rate` tickets a second; "
    "tickets_per_s is the median of windows of 5 s; latencies are of the caller, from request to answer, the "
    "worst process's quantiles, over all calls after the first seconds. cpu_us_per_ticket: processor time of "
    f"each kind of process. rss_growth_mib: from {measure.FULL:,} tickets to the end. most: workers do not "
    "pause. drill: workers die while they hold tickets, half of them for good; reports are repeated, and "
    "must be answered as before unless their ticket is closed by then (trained and in a checkpoint, "
    "evaluated, or dropped), or it fails; repeated_otherwise counts those reports. After each part the "
    "ledger's counts are compared with what the trainer was given: exact, or it fails. "
    "script_transitions_per_s: the ledger's Lua script alone, 64 changes a call, one client. Nobody follows "
    "the bus here but the scheduler itself. mixture_ratio (only with --environments): tickets a second "
    "without pauses of a run with so many environments over that of a run with one, the medians of rounds "
    "in turns; each measurement has processes of its own."
)


@app.command(cls=RecordedCommand)
def control(
    workers: Annotated[int, typer.Option(min=1, help="Simulated rollout workers.")] = 1_000,
    processes: Annotated[int, typer.Option(min=1, help="Processes that hold the workers.")] = 2,
    credit: Annotated[int, typer.Option(min=1, help="Tickets that a worker plays at once.")] = 32,
    hold: Annotated[float, typer.Option(min=0, help="Seconds that a worker plays a ticket.")] = 0.5,
    rate: Annotated[float, typer.Option(min=1, help="Tickets a second of the load.")] = 5_050.0,
    tickets: Annotated[int, typer.Option(min=1, help="Tickets of the part steady.")] = 1_000_000,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Length of each window of the part most, and of the mixture's.")
    ] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the part most.")] = 2,
    kill: Annotated[float, typer.Option(min=0, max=1, help="Share of workers that die in the drill.")] = 0.05,
    repeat: Annotated[
        float, typer.Option(min=0, max=1, help="Share of reports sent twice in the drill.")
    ] = 0.05,
    drill_seconds: Annotated[float, typer.Option(min=1, help="Length of the drill.")] = 30.0,
    parts: Annotated[str, typer.Option(help=f"Any of {', '.join(PARTS)}, separated by commas.")] = ",".join(
        PARTS
    ),
    environments: Environments = 1,
    mixture_rounds: MixtureRounds = 3,
    profile: Annotated[
        bool, typer.Option(help="Sample where the scheduler spends its time (steady).")
    ] = False,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """The rate that the scheduler and its ledger sustain, and whether every ticket exists exactly once."""
    chosen = parts_to_measure(parts, PARTS, environments)
    if workers % processes:
        raise typer.BadParameter(f"{workers} workers in {processes} processes", param_hint="processes")
    load = ControlLoad(workers, processes, credit, hold)

    async def work(directory: Path) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        if "steady" in chosen:
            figures |= await measure.steady(directory / "steady", load, rate, tickets, profile)
        if "most" in chosen:
            figures |= await measure.most(directory / "most", load, seconds, rounds)
        if environments > 1:
            figures |= await measure.mixture(
                directory / "mixture", load, environments, seconds, mixture_rounds
            )
        if "drill" in chosen:
            figures |= await measure.drill(directory / "drill", load, rate, drill_seconds, kill, repeat)
        if "script" in chosen:
            figures |= await measure.script(directory / "script", seconds)
        return figures

    with tempfile.TemporaryDirectory(prefix="earl-bench-control-") as temporary:
        figures = asyncio.run(work(Path(temporary)))
    setting = {"workers": workers, "processes": processes, "credit": credit, "hold_s": hold, "rate": rate}
    cores = len(os.sched_getaffinity(0))
    publish(
        "control",
        {"measures": MEASURES, "cores": cores, **setting, **figures},
        results,
        as_json=as_json,
    )
