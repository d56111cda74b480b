"""The time that one owner needs to plan its reads: weights of 46,848 tensors, a batch of 16,384 sequences.

    for each case: a fresh process ─► plan ─► requests within credit ─► every copy spelled out, a request
                   at a time ─► seconds, copies, and the peak of its memory beyond what it began with

Nothing is transferred: no tensor exists here, only layouts.
"""

from __future__ import annotations

import gc
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.children import REPORT, MeasurementWrong, last_line
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.plan_copies import PackedSequences, copies_of, ragged_index
from benchmarks.record.checkout import ROOT
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import phase
from benchmarks.record.results import publish
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import Placement, split_of
from earl.dispatch.plan.class_plan import Reads, Want, plan_reads
from earl.dispatch.plan.schedule import schedule
from earl.dispatch.plan.sequence_plan import ContextSlice, plan_batch

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "benchmarks/plan_copies.py",
    "earl/dispatch/plan",
    "earl/dispatch/layout",
)

LAYERS, EXPERTS, HIDDEN, INTERMEDIATE = 61, 256, 7168, 2048
OWNERS = 1024
# gate, up and down of every expert, each a tensor of its own: [rows, columns], and the dimension tp splits.
MATRICES = ((INTERMEDIATE, HIDDEN, 0), (INTERMEDIATE, HIDDEN, 0), (HIDDEN, INTERMEDIATE, 1))
ITEM_BYTES = 2
CREDIT_BYTES = 64 << 20
SEQUENCES, PRODUCERS, DP, CP = 16_384, 512, 256, 4
MICRO_BATCH = 8
# tokens int32, loss mask bool, log-probs float32, version int32.
COLUMN_BYTES = (4, 1, 4, 4)
CASE_S = 600.0
COMPARES = (
    "Nothing: time and memory of one owner's plan, pure computation without any transfer. weights: "
    f"{LAYERS} layers x {EXPERTS} experts x gate, up, down, each a tensor of its own ({3 * LAYERS * EXPERTS} "
    f"tensors), from {OWNERS} trainer ranks to {OWNERS} engine ranks, for several pairs of layouts. batch: "
    f"{SEQUENCES} packed sequences over {PRODUCERS} producers to dp {DP} x cp {CP} (zigzag), index included. "
    "A plan counts as ready once its requests are in order and each copy's tensor, source, target and extent "
    "were spelled out. Each case has a process of its own; per owner the median over the repetitions, caches "
    "emptied before each; the slowest of the owners measured, which stand evenly over the mesh. weights_* is "
    "the slowest and the largest of all pairs."
)


@app.command(cls=RecordedCommand)
def plan(
    owners: Annotated[int, typer.Option(min=1, max=OWNERS, help="Owners to measure of each case.")] = 8,
    repetitions: Annotated[int, typer.Option(min=1, help="Plans of each owner.")] = 3,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure the seconds and the memory of one owner's plan of its reads, at 1,024 owners."""
    weights = {name: in_fresh_process(name, owners, repetitions) for name in WEIGHTS}
    batch = in_fresh_process("batch", owners, repetitions)
    result = {
        "compares": COMPARES,
        "owners": owners,
        "repetitions": repetitions,
        "credit_bytes": CREDIT_BYTES,
        "weights_tensors": 3 * LAYERS * EXPERTS,
        "weights_seconds": max(figures["seconds"] for figures in weights.values()),
        "weights_peak_bytes": max(figures["peak_bytes"] for figures in weights.values()),
        "batch_milliseconds": round(1e3 * batch["seconds"], 3),
        "weights": weights,
        "batch": batch,
    }
    publish("plan", result, results, as_json=as_json)


def in_fresh_process(name: str, owners: int, repetitions: int) -> dict[str, Any]:
    """The figures of one case, measured in a process of its own."""
    phase(f"the plan of {name}")
    command = [sys.executable, "-m", "benchmarks.plan", name, str(owners), str(repetitions)]
    line = last_line(command, f"the plan of {name}", CASE_S, ROOT)
    sys.stderr.write(f"{name}: {line}\n")
    return json.loads(line)


Case = Callable[[int], Reads]


def weights(source: tuple[int, ...], target: tuple[int, ...], placements: Callable[[int], Any]) -> Case:
    """The plan of engine rank `owner`. placements: (source's, target's), by the dimension that tp shards."""
    trainers = tuple(f"trainer-{i}" for i in range(OWNERS))
    engines = tuple(f"engine-{i}" for i in range(OWNERS))

    def planned(owner: int) -> Reads:
        wants: list[Want] = []
        for rows, columns, dimension in MATRICES:
            shape = (LAYERS, EXPERTS, rows, columns)
            before, after = placements(2 + dimension)
            runs = MeshLayout(shape, target, after, engines, stack=2).runs(owner)
            wants.append(Want(MeshLayout(shape, source, before, trainers, stack=2), runs, ITEM_BYTES))
        return plan_reads(wants)

    return planned


SAME: Placement = ("replicate",)
EP: Placement = ("shard", 1)
ROWS: Placement = ("shard", 2)
# By name: trainer layout -> engine layout.
WEIGHTS: dict[str, Case] = {
    "fsdp 16 x ep 64 -> dp 32 x ep 32": weights(
        (16, 64), (32, 32), lambda dimension: ((ROWS, EP), (SAME, EP))
    ),
    "replicas 4 x fsdp 4 x ep 64 -> dp 32 x ep 32": weights(
        (4, 4, 64), (32, 32), lambda dimension: ((SAME, ROWS, EP), (SAME, EP))
    ),
    "fsdp 1024 -> dp 128 x tp 8": weights(
        (1024,), (128, 8), lambda dimension: ((ROWS,), (SAME, ("shard", dimension)))
    ),
    "replicas 8 x fsdp 128 -> dp 128 x tp 8": weights(
        (8, 128), (128, 8), lambda dimension: ((SAME, ROWS), (SAME, ("shard", dimension)))
    ),
    "fsdp 128 x tp 8 -> dp 256 x tp 4": weights(
        (128, 8),
        (256, 4),
        lambda dimension: (
            (("strided_shard", 2, 8) if dimension == 2 else ROWS, ("shard", dimension)),
            (SAME, ("shard", dimension)),
        ),
    ),
}


def batch_case() -> Case:
    """The plan of trainer rank `owner`: dp rank owner // CP, cp rank owner % CP."""
    generator = np.random.default_rng(4)
    lengths = np.minimum(generator.lognormal(8, 1, SEQUENCES).astype(np.int64) + 16, 131_072)
    dealt = generator.permutation(SEQUENCES).reshape(PRODUCERS, -1)
    held = [
        PackedSequences(f"rollout-{i}", sequences, np.concatenate([[0], np.cumsum(lengths[sequences])]))
        for i, sequences in enumerate(dealt)
    ]
    consumed = generator.permutation(SEQUENCES).reshape(DP, -1)
    micro = np.arange(consumed.shape[1], dtype=np.int32) // MICRO_BATCH

    def planned(owner: int) -> Reads:
        context = ContextSlice(owner % CP, CP)
        return plan_batch(
            ragged_index(held), consumed[owner // CP], COLUMN_BYTES, context, priority=micro
        ).reads

    return planned


def measure(name: str, owners: int, repetitions: int) -> dict[str, Any]:
    """Measures a case in this process: the slowest owner's plan, and the peak of memory over all owners."""
    case = batch_case() if name == "batch" else WEIGHTS[name]
    before = resident("VmRSS")
    slowest: dict[str, Any] = {"seconds": -1.0}
    for owner in sorted({round(i) for i in np.linspace(0, OWNERS - 1, owners)}):
        gc.collect()
        times: list[float] = []
        planning: list[float] = []
        computing: list[float] = []
        for _ in range(repetitions):
            split_of.cache_clear()
            started, cpu = time.perf_counter(), time.process_time()
            reads = case(owner)
            requests = schedule(reads, CREDIT_BYTES, first_peer=owner)
            planning.append(time.perf_counter() - started)
            copies = sum(len(copies_of(requests, i).tensor) for i in range(len(requests)))
            times.append(time.perf_counter() - started)
            computing.append(time.process_time() - cpu)
            if copies != reads.copies:
                raise MeasurementWrong(
                    f"{name}: {copies} copies in requests, {reads.copies} in the plan", REPORT
                )
        seconds = round(statistics.median(times), 6)
        if seconds > slowest["seconds"]:
            slowest = {
                "seconds": seconds,
                "cpu_seconds": round(statistics.median(computing), 6),
                "of_which_plan_seconds": round(statistics.median(planning), 6),
                "owner": owner,
                "copies": copies,
                "blocks": len(reads.blocks),
                "requests": len(requests),
                "peers": int((reads.loads > 0).sum()),
                "read_bytes": reads.size_bytes,
            }
    return {**slowest, "peak_bytes": resident("VmHWM") - before}


def resident(field: str) -> int:
    """Bytes of a field of this process's status: VmRSS is memory now, VmHWM its peak."""
    match = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return 1024 * int(match[1])


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
