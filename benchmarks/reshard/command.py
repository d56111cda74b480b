"""Weights from a trainer's ranks to an engine's, or to a trainer of another size: three ways in turn."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.children import REPORT
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import counted, phase
from benchmarks.record.results import publish
from benchmarks.reshard.cases import CARRIER, CASES, SMOLLM2, VERSIONS, ReshardCase, needed_bytes
from benchmarks.reshard.gather import Buckets
from benchmarks.reshard.hosts import measure_hosts
from benchmarks.role import RoleProcess
from earl.bus import EmbeddedValkey
from earl.errors import ChecksumMismatch, ConfigError
from earl.models.spec import ModelSpec

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "earl/dispatch",
    "services/rollout/pool/host_copy.py",
    "services/trainer/model",
)

WAYS = ("earl", "memcpy", "gather_broadcast")
WARM_UP = 2
# Time for every process to learn when a round begins.
AHEAD_NS = 20_000_000
COMPARES = (
    "Time from one moment for all processes until the last reader's arrays are full: owned, contiguous, "
    "touched before. A model of SmolLM2-135M's sizes but 8 heads and 4 key-value heads, bfloat16, random "
    "bits; each trainer rank and each reader a process of its own on one host; ways in turn within a round, "
    "medians over the rounds; every element compared after each way of each round. "
    "Each trainer rank holds two versions in two slots, and rounds take them in turn. "
    "earl: each reader asks the registry, finds that what it planned for the version before still holds, and "
    "copies just its slices out of the trainer ranks' slots (no checksums, shared memory). memcpy: the same "
    "slices of the same slots, known beforehand, copied by the same "
    "processes with as many threads (two each) from memory mapped and touched before. gather_broadcast: over "
    "gloo on loopback, trainer rank 0 gathers full tensors in buckets of 64 MiB and broadcasts them to the "
    "readers, which copy their slices; buffers are made and packed beforehand, replicas sent once. "
    "peak_extra_bytes: the most that any reader's memory grew by during a read, beside its arrays and the "
    "files that it maps; slot_bytes: what one version takes in the trainer ranks' arenas."
)


@app.command(cls=RecordedCommand)
def reshard(
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds of each way and case.")] = 11,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model.")] = SMOLLM2.layers,
    hosts: Annotated[
        int, typer.Option(min=0, help="Instead: from one publisher to the engines of so many hosts less one.")
    ] = 0,
    gbps: Annotated[float, typer.Option(min=0.001, help="Rate of each host's link, with --hosts.")] = 1.0,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Move weights from one layout to another: directly, as memcpy, and by gather and broadcast.

    With --hosts: to engines of other hosts, whole and as the elements that changed.
    """
    spec = replace(SMOLLM2, layers=layers)
    if hosts:
        if hosts < 2:
            raise ConfigError(f"--hosts {hosts}", "give 2 or more: the first one publishes")
        result = asyncio.run(measure_hosts(spec, hosts, gbps, rounds))
        publish("reshard-hosts", result, results, as_json=as_json)
        return
    figures = {case.name: asyncio.run(measure(spec, case, rounds)) for case in CASES}
    result = {
        "compares": COMPARES,
        "rounds": rounds,
        "parameters": spec.parameters,
        "model_bytes": CARRIER.itemsize * spec.parameters,
        "bytes_moved": sum(measured["bytes_moved"] for measured in figures.values()),
        "bytes_needed": sum(measured["bytes_needed"] for measured in figures.values()),
        "peak_extra_bytes": max(measured["peak_extra_bytes"] for measured in figures.values()),
        "times_memcpy_floor": max(measured["times_memcpy_floor"] for measured in figures.values()),
        "speedup_vs_gather_broadcast": min(
            measured["speedup_vs_gather_broadcast"] for measured in figures.values()
        ),
        "cases": figures,
    }
    publish("reshard", result, results, as_json=as_json)


async def measure(
    spec: ModelSpec, case: ReshardCase, rounds: int, arenas: str = "/dev/shm"
) -> dict[str, Any]:
    """The figures of one case. Raises ChecksumMismatch when a reader ends with a wrong element."""
    phase(f"starting the processes of {case.name}")
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-")))
        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-", dir=arenas))
        valkey = EmbeddedValkey()
        stack.push_async_callback(valkey.stop)
        url = await valkey.start(directory / "bus")

        async def start(role: str, rank: int) -> tuple[RoleProcess, dict[str, Any]]:
            fields = asdict(spec)
            del fields["rope"]
            made, opened = await RoleProcess.start(
                "benchmarks.reshard.roles", role=role, rank=rank, case=asdict(case), model=fields,
                redis=url, arenas=shared, rendezvous=str(directory / "rendezvous"),
            )  # fmt: skip
            stack.push_async_callback(made.stop)
            return made, opened

        started = await asyncio.gather(*(start("trainer", rank) for rank in range(case.trainers)))
        trainers, slots = [role for role, _ in started], [slot for _, slot in started]
        joining = await asyncio.gather(*(start("reader", rank) for rank in range(case.readers)))
        readers = [role for role, _ in joining]
        await asyncio.gather(*(role.ask(do="join", trainers=slots) for role in (*trainers, *readers)))
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        read: list[list[dict[str, Any]]] = []
        for turn in counted(f"rounds of {case.name}", range(rounds + WARM_UP)):
            for way in WAYS:
                senders = trainers if way == "gather_broadcast" else []
                # gloo's buffers are packed of the first version alone.
                version = min(VERSIONS) if senders else list(VERSIONS)[turn % len(VERSIONS)]
                milliseconds, answers = await one_round(senders, readers, way, version)
                if way == "earl":
                    read.append(answers)
                if turn >= WARM_UP:
                    times[way].append(milliseconds)
    earl, memcpy, gather = (statistics.median(times[way]) for way in WAYS)
    figures = {
        "path": "+".join(sorted({answer["path"] for answer in read[-1]})),
        "bytes_moved": sum(answer["moved_bytes"] for answer in read[-1]),
        "bytes_needed": needed_bytes(spec, case),
        "gather_broadcast_bytes_moved": Buckets(spec, case).moved_bytes,
        "peak_extra_bytes": max(answer["extra_bytes"] for answers in read for answer in answers),
        "slot_bytes": sum(slot["slot_bytes"] for slot in slots),
        **{f"{way}_ms": round(statistics.median(times[way]), 3) for way in WAYS},
        **{f"{way}_ms_range": [round(end(times[way]), 3) for end in (min, max)] for way in WAYS},
        "times_memcpy_floor": round(earl / memcpy, 3),
        "speedup_vs_gather_broadcast": round(gather / earl, 2),
    }
    sys.stderr.write(f"{case.name}: earl {earl:.1f} ms, memcpy {memcpy:.1f}, gather_broadcast {gather:.1f}\n")
    return figures


async def one_round(
    senders: Sequence[RoleProcess], readers: Sequence[RoleProcess], way: str, version: int
) -> tuple[float, list[dict[str, Any]]]:
    """Milliseconds until the last reader was done, and each reader's answer. Raises ChecksumMismatch."""
    at_ns = time.monotonic_ns() + AHEAD_NS
    everybody = (*senders, *readers)
    answers = await asyncio.gather(*(role.ask(do=way, at_ns=at_ns, version=version) for role in everybody))
    mine = list(answers[len(senders) :])
    checked = await asyncio.gather(*(role.ask(do="check", version=version) for role in readers))
    if not all(answer["right"] for answer in checked):
        raise ChecksumMismatch(f"{way}: a reader's arrays are not what the trainer ranks hold", REPORT)
    return (max(answer["ended_ns"] for answer in mine) - at_ns) / 1e6, mine
