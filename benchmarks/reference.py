"""Reference log-probs from the stage's ranks to the trainer's: directly, and through one controller."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.children import REPORT
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import counted
from benchmarks.record.results import publish
from benchmarks.reference_roles import Deal
from benchmarks.role import RoleProcess
from earl.bus import EmbeddedValkey
from earl.errors import ChecksumMismatch, ConfigError

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/trainer/reference",
    "earl/dispatch",
)

RANKS = 2
WARM_UP = 3
COMPARES = (
    "Time from the end of the last stage rank's compute until the last trainer rank's column is filled, "
    f"{RANKS} stage ranks to {RANKS} trainer ranks, each trainer rank wanting sequences of every stage rank; "
    "processes of their own, on one host, ways taken in turn within one run, medians over the rounds. "
    "direct: descriptors in the registry, a word to the controller, and each trainer rank reads the slices "
    "from the stage ranks' arenas, over the path named; of it, publish is the registry's answer (an embedded "
    "Valkey answers once it is on disk) and read the transfer itself. controller: every stage rank streams "
    "its column to one controller over gRPC (1 MiB messages), which regroups it and streams it to the "
    "trainer ranks. On one host both share one memory bus; on a network the controller's link would carry "
    "everything twice."
)


@app.command(cls=RecordedCommand)
def reference(
    sizes: Annotated[
        str, typer.Option(help="Batches as sequences x tokens, separated by commas.")
    ] = "64x512,64x2048,64x8192,256x8192,512x32768",
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds of each way and size.")] = 15,
    transport: Annotated[
        str, typer.Option(help='Transport of the direct way: "auto" (shared memory) or "ucx".')
    ] = "auto",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Move reference log-probs from the stage's ranks to the trainer's, directly or through a controller."""
    try:
        batches = [tuple(map(int, text.split("x"))) for text in sizes.split(",")]
        deals = [deal(sequences, tokens) for sequences, tokens in batches]
    except ValueError:
        raise typer.BadParameter(f"{sizes!r} is no list of sizes such as 64x512,64x8192") from None
    measured = asyncio.run(measure(deals, rounds, transport))
    result = {
        "compares": COMPARES,
        "rounds": rounds,
        "batches": measured,
        "ratio_min": min(row["ratio"] for row in measured),
        "ratio_max": max(row["ratio"] for row in measured),
    }
    publish("reference", result, results, as_json=as_json)


def deal(sequences: int, tokens: int) -> Deal:
    """Sequences assigned to ranks twice, independently, as the scheduler does for stage and trainer."""
    if sequences < RANKS or tokens < 1:
        raise ConfigError(
            f"--sizes {sequences}x{tokens} is no batch",
            f"give {RANKS} sequences or more, of a token or more, such as 64x512",
        )
    generator = np.random.default_rng(sequences * tokens)

    def assign() -> list[list[int]]:
        order = generator.permutation(sequences)
        return [sorted(order[rank::RANKS].tolist()) for rank in range(RANKS)]

    return Deal(tokens, assign(), assign())


async def measure(deals: list[Deal], rounds: int, transport: str) -> list[dict[str, Any]]:
    """Figures of every batch, both ways; milliseconds are medians over the rounds."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        arenas = stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-", dir="/dev/shm"))
        valkey = EmbeddedValkey()
        stack.push_async_callback(valkey.stop)
        url = await valkey.start(directory)

        async def start(**role: Any) -> tuple[RoleProcess, dict[str, Any]]:
            made, opened = await RoleProcess.start("benchmarks.reference_roles", **role)
            stack.push_async_callback(made.stop)
            return made, opened

        controller, opened = await start(role="controller")
        # All of a batch may lie on one rank, twice, beside alignment.
        bytes_ = max(2 * 4 * dealt.tokens * sum(map(len, dealt.computes)) for dealt in deals) + (16 << 20)
        common = {
            "redis": url, "transport": transport, "controller": opened["address"],
            "arenas": arenas, "arena_bytes": bytes_,
        }  # fmt: skip
        stages = [(await start(role="stage", rank=rank, **common))[0] for rank in range(RANKS)]
        trainers = [(await start(role="trainer", rank=rank, **common))[0] for rank in range(RANKS)]
        return [
            await batch(controller, stages, trainers, dealt, rounds) for dealt in counted("batches", deals)
        ]


async def batch(
    controller: RoleProcess, stages: list[RoleProcess], trainers: list[RoleProcess], dealt: Deal, rounds: int
) -> dict[str, Any]:
    """Figures of one batch, measured both ways in turn."""
    times: dict[str, list[float]] = {"direct": [], "controller": []}
    parts: dict[str, list[float]] = {"publish": [], "read": []}
    paths: set[str] = set()
    for number in range(1, rounds + WARM_UP + 1):
        for way in times:
            work = {**asdict(dealt), "way": way, "number": number}
            await controller.ask(**work)
            answers = await asyncio.gather(*(role.ask(**work) for role in [*trainers, *stages]))
            filled, computed = answers[: len(trainers)], answers[len(trainers) :]
            if not all(answer["right"] for answer in filled):
                raise ChecksumMismatch(
                    f"{way}: a trainer rank's column is not what the stage computed", REPORT
                )
            if way == "direct":
                paths |= {answer["path"] for answer in filled}
            if number > WARM_UP:
                last = max(answer["at_ns"] for answer in filled) - max(answer["at_ns"] for answer in computed)
                times[way].append(last / 1e6)
                if way == "direct":
                    parts["publish"].append(max(answer["part_ns"] for answer in computed) / 1e6)
                    parts["read"].append(max(answer["part_ns"] for answer in filled) / 1e6)
    sequences = sum(map(len, dealt.computes))
    direct_ms, controller_ms = (statistics.median(times[way]) for way in ("direct", "controller"))
    return {
        "sequences": sequences,
        "tokens": dealt.tokens,
        "mib": round(4 * sequences * dealt.tokens / (1 << 20), 3),
        "path": "+".join(sorted(paths)),
        "direct_ms": round(direct_ms, 3),
        "direct_publish_ms": round(statistics.median(parts["publish"]), 3),
        "direct_read_ms": round(statistics.median(parts["read"]), 3),
        "controller_ms": round(controller_ms, 3),
        "ratio": round(controller_ms / direct_ms, 2),
    }
