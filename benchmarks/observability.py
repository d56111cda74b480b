"""What metrics and traces cost: the demo's tokens per second with them and without, in turns.

    off: obs.metrics = "", obs.traces = ""
    on:  every process serves its metrics and is scraped; traces go to a collector that only takes them

Scraper and collector run in this process, on the same machine, and count against `on`.
"""

from __future__ import annotations

import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import grpc
import typer

from benchmarks.every import every
from benchmarks.learning import published
from benchmarks.output import RESULTS, AsJson, Results
from benchmarks.usage import watched
from earl.cli.demo import demo_config
from earl.cli.run import INTERRUPTED, OverridableCommand, overrides_of, run_to_end
from earl.config.load import Override
from earl.obs.metrics import read_lines
from earl.stack.endpoints import endpoints_of
from earl.stack.rundir import run_path

app = typer.Typer(add_completion=False)

COMPARES = (
    "The demo's training steps with metrics (every endpoint scraped every 5 s) and traces (a collector that "
    "takes them) and without, whole runs in turns. tokens_per_s: tokens of the episodes that steps learned "
    "from, from the first step's end to the last one's. cost: 1 - on / off, of the medians; pairs: of each. "
    "cpu_us_per_token: processor time of all processes of the run, collector and scraper among them, for "
    "these tokens; cpu_cost: on / off - 1, of the medians; cpu_pairs: of each. What else the machine does "
    "moves the first more than the second."
)
SCRAPE_S = 5.0
# Of each run little but training steps.
SETTINGS = [("evaluation.at_start", "false"), ("evaluation.at_end", "false"), ("warmup.batches", "2")]


@app.command(cls=OverridableCommand, epilog="Example: earl bench observability --rounds 3 --steps 60 --json")
def observability(
    ctx: typer.Context,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs.")] = 3,
    steps: Annotated[int, typer.Option(min=3, help="Training steps of each run.")] = 60,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """What metrics and traces cost: the demo's tokens per second with them and without, in turns."""
    runs: list[dict[str, Any]] = []
    with published("observability", {"compares": COMPARES}, runs, summary, results, as_json=as_json):
        for number in range(rounds):
            # Whoever is second finds a warmer machine: they take turns in that, too.
            for side in ("off", "on") if number % 2 == 0 else ("on", "off"):
                runs.append(measured(side, number, [("scheduler.steps", str(steps)), *overrides_of(ctx)]))


def measured(side: str, number: int, overrides: list[Override]) -> dict[str, Any]:
    """One whole run."""
    with TemporaryDirectory() as scratch, collector() as (address, received):
        off = [("obs.metrics", ""), ("obs.traces", "")]
        shown = off if side == "off" else [("obs.traces", address)]
        config = demo_config(0, [*SETTINGS, ("runs_dir", scratch), *shown, *overrides])
        with scraped(run_path(config)) as scrapes, watched(run_path(config)) as usage:
            outcome = run_to_end(config, resume=False, plain=True, started_at=time.monotonic())
        if not outcome.complete:
            sys.stderr.write("earl: the run was stopped before its last step\n")
            raise typer.Exit(INTERRUPTED)
        found, steps = tokens_per_s(outcome.directory), training_steps(outcome.directory)
    cpu_us = usage.per_token([one["tokens"] for one in steps])
    figures = {"side": side, "pair": number, "tokens_per_s": found, "cpu_us_per_token": cpu_us}
    sys.stderr.write(f"{side}: {found:.0f} tokens/s, {cpu_us:.1f} us of processor time each\n")
    return {**figures, "scrapes": sum(scrapes), "trace_bytes": sum(received)}


def tokens_per_s(directory: Path) -> float:
    """Of the training steps, the first one left out."""
    lines = training_steps(directory)
    seconds = lines[-1]["time_s"] - lines[0]["time_s"]
    return sum(one["tokens"] for one in lines[1:]) / seconds


def training_steps(directory: Path) -> list[dict[str, Any]]:
    return [one for one in read_lines(directory / "metrics.jsonl") if one.get("phase") == "train"]


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of both sides and what they differ by."""
    rates, cpu_us = (
        [[run[figure] for run in runs if run["side"] == side] for side in ("off", "on")]
        for figure in ("tokens_per_s", "cpu_us_per_token")
    )
    if not all(rates):
        return {}
    off, on = map(statistics.median, rates)
    cpu_off, cpu_on = map(statistics.median, cpu_us)
    return {
        "off_tokens_per_s": off,
        "on_tokens_per_s": on,
        "cost": 1 - on / off,
        "pairs": [1 - b / a for a, b in zip(*rates, strict=False)],
        "cpu_cost": cpu_on / cpu_off - 1,
        "cpu_pairs": [b / a - 1 for a, b in zip(*cpu_us, strict=False)],
    }


@contextmanager
def collector() -> Iterator[tuple[str, list[int]]]:
    """An OTLP collector's Export, which keeps nothing: its address, and the sizes of what came."""
    received: list[int] = []

    def export(request: bytes, context: grpc.ServicerContext) -> bytes:
        received.append(len(request))
        return b""

    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    handler = grpc.method_handlers_generic_handler(
        name, {"Export": grpc.unary_unary_rpc_method_handler(export)}
    )
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", received
    finally:
        server.stop(None).wait(5.0)


@contextmanager
def scraped(directory: Path) -> Iterator[list[int]]:
    """Scrapes what endpoints.json names, as a Prometheus would, until the block ends; 1 for each answer."""
    answers: list[int] = []

    def scrape() -> None:
        for address in endpoints_of(directory).values():
            try:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=SCRAPE_S) as answer:
                    answers.append(1 if answer.read() else 0)
            except OSError:
                continue  # a process that is ending

    with every(SCRAPE_S, scrape):
        yield answers
