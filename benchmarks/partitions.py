"""Cuts every link of a fleet while it trains: what is lost, who ends, how soon it trains on.

each pair of processes that talk × 1, 4, 15 s × there, back, both    60 s both    one reset
        └─► cut ─► heal ─► until a step is trained ─► seconds, processes that ended
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from benchmarks.children import late, process_error
from benchmarks.goals import missed_goals
from benchmarks.network.drops import WAYS, Way, dropped, require_firewall, reset
from benchmarks.network.fleet import HostedRun
from benchmarks.network.links import Link
from benchmarks.network.rig import network
from benchmarks.options import RESULTS, AsJson, Results, Seeds, whole_numbers
from benchmarks.record.checkout import ROOT
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import counted
from benchmarks.record.results import publish
from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.errors import DeadlineExceeded, ProcessFailed
from earl.stack.process import last_lines

app = typer.Typer(add_completion=False)
MEASURED_CODE = (
    "earl/bus",
    "earl/dispatch",
    "earl/rpc",
    "earl/scheduler_client.py",
    "services",
    "benchmarks/network",
    "benchmarks/partitions.py",
)
RUN_FILE = ROOT / "examples" / "tictactoe.toml"
PLACES = {"valkey": 0, "scheduler": 1, "gateway": 2, "env-0": 3, "trainer": 4, "rollout-0": 5}
# Every two processes that talk with each other; trainer and worker read each other's arenas.
PAIRS = (
    ("scheduler", "valkey"),
    ("trainer", "valkey"),
    ("rollout-0", "valkey"),
    ("trainer", "scheduler"),
    ("rollout-0", "scheduler"),
    ("gateway", "valkey"),
    ("rollout-0", "gateway"),
    ("env-0", "gateway"),
    ("trainer", "rollout-0"),
)
SHORT_S, LONG_S, RESET_S = (1, 4, 15), 60, 1
GBPS = 1.0
# No step for so long after a cut has healed is a hang.
HANG_S = 90.0
POLL_S = 0.02
# As many steps as no run trains.
STEPS = 1_000_000
GOALS = {"lost_max": 0.0, "trained_twice_max": 0.0, "hangs_max": 0.0, "crashes_max": 0.0}
COMPARES = (
    "One run on network namespaces that are joined by links of 1 Gbit/s, each process on a host of its own; "
    "it takes every case of a seed in random order. A cut drops all packets between two hosts, one way "
    "or both; a reset answers each packet between them with a TCP reset. to_progress_s: from the heal until "
    "the next training step is recorded, the step itself included. trained_twice: steps that were recorded "
    "more than once; lost: issued tickets that are in no state at the end of a run, null, which misses the "
    "goal, where the scheduler of a run does not answer then; hangs: no step within 90 s of a heal; crashes: "
    "processes of the run that ended; after one, the next case begins a new run."
)


@dataclass(frozen=True, slots=True)
class PartitionCase:
    """One broken link. seconds: for how long; kind: the way whose packets are lost, or "reset"."""

    pair: tuple[str, str]
    kind: Way | Literal["reset"]
    seconds: int

    @property
    def name(self) -> str:
        return f"{self.pair[0]}-{self.pair[1]}/{self.kind}/{self.seconds}"


def cases() -> list[PartitionCase]:
    """All cases of a seed."""
    made: list[PartitionCase] = []
    for pair in PAIRS:
        made += [PartitionCase(pair, way, seconds) for seconds in SHORT_S for way in WAYS]
        made += [PartitionCase(pair, "both", LONG_S), PartitionCase(pair, "reset", RESET_S)]
    return made


@app.command(cls=RecordedCommand)
def partitions(
    seeds: Seeds = "0,1,2",
    only: Annotated[str, typer.Option(help="Only cases whose name begins so, such as trainer-valkey/.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Break every link of a fleet while it trains, and measure what is lost and how soon it trains on.

    Needs root, namespaces and iptables. The links of a seed are broken for 18 minutes in all; --only measures
    a part of them.
    """
    require_firewall()
    chosen = [case for case in cases() if case.name.startswith(only)]
    if not chosen:
        raise typer.BadParameter(f"no case begins with {only!r}, such as {cases()[0].name}")
    measured: list[dict[str, Any]] = []
    about = {"compares": COMPARES, "goals": GOALS, "gbps": GBPS, "only": only}
    try:
        for seed in whole_numbers(seeds):
            for record in of_seed(seed, chosen):
                measured.append(record)
    finally:
        if measured:
            figures = summary(measured)
            missed = missed_goals({f"{name}_max": figures[name] for name in figures}, GOALS)
            publish("partitions", {**about, **figures, "missed": missed, "cases": measured}, results,
                    as_json=as_json)  # fmt: skip


def of_seed(seed: int, chosen: Sequence[PartitionCase]) -> Iterator[dict[str, Any]]:
    """The figures of each case, in an order of the seed's, and one record of the seed's tickets."""
    order = random.Random(seed).sample(list(chosen), len(chosen))
    cases_left = counted(f"seed {seed}", order)
    case = next(cases_left, None)
    while case is not None:
        with (
            tempfile.TemporaryDirectory() as directory,
            network(len(PLACES), Link(GBPS)) as rig,
            HostedRun(rig, run_file(seed, directory), PLACES) as run,
        ):
            run.start()
            until_trained(run)
            while case is not None and not run.ended():
                yield {"seed": seed, **of_case(run, case)}
                case = next(cases_left, None)
            yield {"seed": seed, **of_run(run)}


def run_file(seed: int, directory: str) -> RunConfig:
    """The example's run without an end, in this directory."""
    given = {
        "name": "partitions", "runs_dir": directory, "seed": seed, "scheduler.steps": STEPS,
        "evaluation.episodes": 0, "warmup.batches": 0, "scheduler.batch_groups": 4, "scheduler.group_size": 4,
        "trainer.minibatches": 1, "rollout.max_sequences": 16,
    }  # fmt: skip
    return load_run(RUN_FILE, [(key, str(value)) for key, value in given.items()])


def of_case(run: HostedRun, case: PartitionCase) -> dict[str, Any]:
    """Breaks a link, heals it, and waits for a step."""
    with break_link(run, case):
        time.sleep(case.seconds)
    return {"case": case.name, "to_progress_s": progress(run), "ended": run.ended()}


@contextmanager
def break_link(run: HostedRun, case: PartitionCase) -> Iterator[None]:
    """The case's link is broken within the block."""
    first, second = (run.host(name) for name in case.pair)
    with reset(first, second) if case.kind == "reset" else dropped(first, second, case.kind):
        yield


def until_trained(run: HostedRun) -> None:
    """Waits for the first step of a run whose links are whole. Raises DeadlineExceeded, ProcessFailed."""
    if progress(run) is None:
        for name, code in run.ended().items():
            raise process_error(name, code, "\n".join(last_lines(run.processes[name].log, 40)))
        raise late("the first step", HANG_S)


def progress(run: HostedRun) -> float | None:
    """Seconds until a step more is recorded; None after HANG_S, or where a process ended."""
    begun, began_s = len(run.steps()), time.monotonic()
    while time.monotonic() - began_s < HANG_S and not run.ended():
        if len(run.steps()) > begun:
            return round(time.monotonic() - began_s, 2)
        time.sleep(POLL_S)
    return None


def of_run(run: HostedRun) -> dict[str, Any]:
    """Counts what became of the run's tickets and steps. lost: None where the scheduler does not answer."""
    steps = run.steps()
    try:
        lost = run.lost_tickets()
    except (ProcessFailed, DeadlineExceeded):
        lost = None
    return {"steps": len(steps), "trained_twice": len(steps) - len(set(steps)), "lost": lost,
            "ended": run.ended()}  # fmt: skip


def summary(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures over all seeds; seconds of the cases that made progress."""
    of_cases = [record for record in measured if "case" in record]
    of_runs = [record for record in measured if "steps" in record]
    seconds = sorted(record["to_progress_s"] for record in of_cases if record["to_progress_s"] is not None)
    lost = [record["lost"] for record in of_runs]
    return {
        "lost": None if None in lost or not lost else sum(lost),
        "trained_twice": sum(record["trained_twice"] for record in of_runs),
        "hangs": sum(record["to_progress_s"] is None and not record["ended"] for record in of_cases),
        "crashes": sum(len(record["ended"]) for record in of_runs),
        "to_progress_p50_s": statistics.median(seconds) if seconds else None,
        "to_progress_worst_s": seconds[-1] if seconds else None,
    }
