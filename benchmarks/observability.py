"""The cost of metrics and traces: the demo with them and without, side by side.

    off: obs.metrics = "", obs.traces = ""                           ─┐ both at the same time, each with
    on:  every process serves its metrics and is scraped; traces go  ─┤ processes and ports of its own
         to a collector that only takes them                          └─► looks at both ─► a pair

Scraper and collector are a process of their own, on the same machine, and count against `on`.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import sys
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any

import typer

from benchmarks import footprint
from benchmarks.children import within
from benchmarks.learning import published
from benchmarks.observed_run import ObservedRun
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted
from benchmarks.role import RoleProcess
from benchmarks.usage import Used, between
from earl.cli.run.demo import RUN_FILE, demo_config, example
from earl.cli.run.launch import overrides_of
from earl.config.load import Override

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "earl/obs",
    "earl/rpc",
    "services",
)

PARTS = ("metrics", "traces")
SIDES = ("off", "on")
COMPARES = (
    "The demo's training steps with `parts` (metrics: every endpoint scraped every 5 s; traces: a collector"
    " that takes them, of obs.trace_fraction) and without. Both runs of a pair go on at the same time on "
    "the same cores, so that whatever else the machine does, it does to both; who is started first "
    "alternates. They take each other's processor time, so neither's tokens_per_s is that of a run alone. "
    "Trainer and engine have one thread each (threads that wait for each other would wait for the other "
    "run). Figures are of the time in which both were between two training steps, each from the end of its "
    "first step in it to the end of its last: tokens of the episodes that these steps learned from, and "
    "processor time of all processes of the run, of `on` collector and scraper too. cost: 1 - on / off of "
    "tokens_per_s; cpu_cost: on / off - 1 of cpu_us_per_token; both the median of pairs and cpu_pairs, "
    "which have one of each pair. The cores are shared among threads and not among runs: who comes further "
    "in this is chance, too, so that cost takes more pairs than cpu_cost to be told from noise. How far "
    "both are from 0 with parts none is that noise. cpu_us_by_kind: by kind of process, medians of each "
    "side. What the engine's and the trainer's computing differ by is noise, but for their endpoints and "
    "spans."
)
# A run is little but training steps, all that were requested, and has no threads that wait for each other.
SETTINGS = [
    ("evaluation.at_start", "false"),
    ("evaluation.at_end", "false"),
    ("warmup.batches", "2"),
    ("scheduler.train_limit_s", "0"),
    ("trainer.threads", "1"),
    ("rollout.threads", "1"),
]
# Between looks for a training step that has ended; what a look is late by belongs to the next step.
POLL_S = 0.25
# Limits of a pair of runs: to start and end, and for each training step.
START_S = 600.0
STEP_S = 60.0


@app.command(
    cls=RecordedOverridableCommand, epilog="Example: earl bench observability --rounds 4 --steps 60 --json"
)
def observability(
    ctx: typer.Context,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs.")] = 4,
    steps: Annotated[int, typer.Option(min=5, help="Training steps of each run.")] = 60,
    parts: Annotated[str, typer.Option(help="What one run of a pair has on: metrics, traces, or none.")] = (
        ",".join(PARTS)
    ),
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure what metrics and traces cost: the demo with them and without, side by side."""
    chosen = parts_of(parts)
    given = [*SETTINGS, ("scheduler.steps", str(steps)), *overrides_of(ctx)]
    demo_config(0, given)  # reports wrong overrides before anything is started
    about = {"compares": COMPARES, "parts": chosen, "steps": steps}
    limit_s = START_S + STEP_S * steps
    runs: list[dict[str, Any]] = []
    with published("observability", about, runs, summary, results, as_json=as_json):
        for number in counted("pairs of runs", range(rounds)):
            runs += asyncio.run(pair(number, chosen, given, limit_s))
            sys.stderr.write(f"pair {number + 1} of {rounds}: {summary_line(summary(runs[-2:]))}\n")


def parts_of(text: str) -> list[str]:
    """ "metrics,traces" as a list, "none" as an empty one; typer.BadParameter for anything else."""
    parts = text.split(",") if text != "none" else []
    if not set(parts) <= set(PARTS):
        raise typer.BadParameter(
            f"--parts {text!r} is no list of {', '.join(PARTS)}, separated by commas, or none"
        )
    return parts


async def pair(
    number: int, parts: Collection[str], overrides: Sequence[Override], limit_s: float
) -> list[dict[str, Any]]:
    """Figures of two whole runs at the same time, `off` first; no process of them is left.

    They share all cores: with half of the cores each, the time of the same work differed by up to 5 %.

    Raises ProcessFailed if a run fails, DeadlineExceeded, MeasurementWrong.
    """
    mark = f"bench-{secrets.token_hex(4)}"
    runs: dict[str, ObservedRun] = {}
    async with AsyncExitStack() as stack:
        stack.callback(lambda: [run.gone() for run in runs.values()])  # once their places have ended them
        places = {
            side: stack.enter_context(footprint.fresh("observability", f"{mark}-{side}", "*"))
            for side in SIDES
        }
        directory = places["on"].directory / places["on"].mark
        collector, opened = await RoleProcess.start(
            "benchmarks.collector", directory=str(directory), scrape="metrics" in parts
        )
        stack.push_async_callback(collector.stop)
        shown = {"off": settings((), ""), "on": settings(parts, opened["address"])}
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            extra_pids = [collector.process.pid] if side == "on" else []
            given = [*shown[side], *overrides]
            runs[side] = ObservedRun(example(RUN_FILE), f"that is {side}", places[side], given, extra_pids)
        async with within(limit_s, "a pair of runs"):
            running = list(runs.values())
            while running:
                await asyncio.sleep(POLL_S)
                running = [run for run in running if run.poll()]
        taken = await collector.ask()
    used_by_side = between({side: runs[side].usage.samples for side in SIDES})
    first = next(iter(runs))
    return [
        {"side": side, "pair": number, "first": side == first}
        | figures(used_by_side[side])
        | (taken if side == "on" else {})
        for side in SIDES
    ]


def settings(parts: Collection[str], traces: str) -> list[Override]:
    """Overrides of a run with these parts. traces: the collector's address."""
    metrics = [] if "metrics" in parts else [("obs.metrics", "")]
    return [*metrics, ("obs.traces", traces if "traces" in parts else "")]


def figures(used: Used) -> dict[str, Any]:
    return {
        "tokens_per_s": used.tokens_per_s,
        "cpu_us_per_token": used.cpu_us_per_token,
        "cpu_us_by_kind": used.cpu_us_by_kind,
        "steps": used.steps,
        "tokens": used.tokens,
        "seconds": used.seconds,
    }


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of both sides and the differences within pairs; {} without a pair."""
    of = {side: [run for run in runs if run["side"] == side] for side in SIDES}
    if not all(of.values()):
        return {}
    pairs = list(zip(of["off"], of["on"], strict=True))
    cost = [1 - on["tokens_per_s"] / off["tokens_per_s"] for off, on in pairs]
    cpu_cost = [on["cpu_us_per_token"] / off["cpu_us_per_token"] - 1 for off, on in pairs]
    kinds = sorted({kind for run in runs for kind in run["cpu_us_by_kind"]})
    medians = {
        f"{side}_{figure}": statistics.median(run[figure] for run in of[side])
        for figure in ("tokens_per_s", "cpu_us_per_token")
        for side in SIDES
    }
    return {
        **medians,
        "cost": statistics.median(cost),
        "pairs": cost,
        "cpu_cost": statistics.median(cpu_cost),
        "cpu_pairs": cpu_cost,
        "cpu_us_by_kind": {
            kind: {
                side: statistics.median(run["cpu_us_by_kind"].get(kind, 0.0) for run in of[side])
                for side in SIDES
            }
            for kind in kinds
        },
    }


def summary_line(figures: dict[str, Any]) -> str:
    """A summary as one line: microseconds of processor time a token by kind, without and with."""
    kinds = ", ".join(
        f"{kind} {cost['off']:.1f} {cost['on']:.1f}" for kind, cost in figures["cpu_us_by_kind"].items()
    )
    return f"cost {figures['cost']:.2%}, of processor time {figures['cpu_cost']:.2%} (us a token: {kinds})"
