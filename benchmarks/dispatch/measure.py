"""Starts the processes and runs the arms in turn.

all arms ─► prepare everywhere ─► run: everybody armed ─► the gate opens: the clock starts
         ─► the last consumer is done: the clock stops ─► every element checked ─► the next arm
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.children import REPORT, MeasurementWrong
from benchmarks.dispatch import peers
from benchmarks.dispatch.arms import ARMS
from benchmarks.dispatch.member import Round
from benchmarks.dispatch.pattern import CONSUMERS, PRODUCERS, Pattern
from benchmarks.record.progress import counted, phase
from benchmarks.role import RoleProcess
from earl.bus import EmbeddedValkey
from earl.errors import ChecksumMismatch

MODULE = "benchmarks.dispatch.roles"
WARM_UP = 1
# The producers' part of the time, the consumers' part, and the consumers' after the read was planned.
PARTS_OF_TIME = ("publish_ms", "read_ms", "bytes_ms")


@dataclass(slots=True)
class RoundSamples:
    """Measurements of one arm at one size, a value per round: milliseconds, and bytes as received."""

    total_ms: list[float] = field(default_factory=list)
    parts_ms: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PARTS_OF_TIME})
    moved_bytes: set[int] = field(default_factory=set)

    def add(self, figures: dict[str, Any]) -> None:
        """Adds one round; a part of the time is kept only where the arm measures it."""
        self.total_ms.append(figures["total_ms"])
        self.moved_bytes.add(figures["moved_bytes"])
        for name in self.parts_ms:
            if figures.get(name):
                self.parts_ms[name].append(figures[name])

    def figures(self) -> dict[str, Any]:
        """Medians, the range, and the bytes; a count that varied between rounds is an error."""
        if len(self.moved_bytes) != 1:
            raise MeasurementWrong(
                f"rounds of one arm moved different amounts: {sorted(self.moved_bytes)}", REPORT
            )
        return {
            "ms": round(statistics.median(self.total_ms), 3),
            "ms_min": round(min(self.total_ms), 3),
            "ms_max": round(max(self.total_ms), 3),
            **{name: round(statistics.median(part), 3) for name, part in self.parts_ms.items() if part},
            "moved_bytes": next(iter(self.moved_bytes)),
        }


@dataclass(frozen=True, slots=True)
class DispatchFleet:
    """The processes of one measurement, and the pipe whose bytes let the producers start."""

    controller: RoleProcess
    producers: list[RoleProcess]
    consumers: list[RoleProcess]
    gate: int
    peers: RoleProcess | None

    @property
    def all(self) -> list[RoleProcess]:
        return [self.controller, *self.producers, *self.consumers]


@asynccontextmanager
async def started(arms: Sequence[str], rows: int) -> AsyncIterator[DispatchFleet]:
    """Every process with its side of every arm open; `rows` is the most a producer will hold.

    Raises PeersAbsent when `arms` has Ray or TransferQueue and they are not installed here.
    """
    others = [name for name in arms if name in peers.PEERS]
    arms = [name for name in arms if name in ARMS]
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-"))
        arenas = stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-", dir="/dev/shm"))
        valkey = EmbeddedValkey()
        stack.push_async_callback(valkey.stop)
        url = await valkey.start(Path(directory))

        def pipe() -> tuple[int, int]:
            ends = os.pipe()
            for end in ends:
                stack.callback(os.close, end)
            return ends

        known: dict[str, dict[str, Any]] = {name: {} for name in arms}

        async def start(role: str, rank: int = 0, **fds: Any) -> RoleProcess:
            open_fds = [
                *fds.get("words_out", {}).values(),
                *(fds[name] for name in ("gate", "words_in") if name in fds),
            ]
            made, opened = await RoleProcess.start(
                MODULE, pass_fds=open_fds, role=role, rank=rank, redis=url, arenas=arenas,
                directory=directory, arms=list(arms), rows=rows, known=known, **fds,
            )  # fmt: skip
            stack.push_async_callback(made.stop)
            for name, what in opened["known"].items():
                known[name].update(what)
            return made

        gate_in, gate = pipe()
        words = {reader: pipe() for reader in ["controller", *map(str, range(CONSUMERS))]}
        words_out = {reader: ends[1] for reader, ends in words.items()}
        controller = await start("controller", words_in=words["controller"][0], words_out=words_out)
        producers = [
            await start("producer", rank, gate=gate_in, words_out=words_out) for rank in range(PRODUCERS)
        ]
        consumers = [await start("consumer", rank, words_in=words[str(rank)][0]) for rank in range(CONSUMERS)]
        side_peers = await peers.start(others, rows, directory) if others else None
        if side_peers is not None:
            stack.push_async_callback(side_peers.stop)
        yield DispatchFleet(controller, producers, consumers, gate, side_peers)


async def one_round(fleet: DispatchFleet, round_: Round) -> dict[str, Any]:
    """Milliseconds from the gate to the last consumer, and what the processes counted.

    Raises ChecksumMismatch when a consumer's buffer is wrong.
    """
    work = asdict(round_)
    if round_.arm not in ARMS:
        assert fleet.peers is not None
        return checked_figures(round_, await fleet.peers.ask(**work))
    await asyncio.gather(*(role.ask(do="prepare", **work) for role in fleet.producers))
    await asyncio.gather(*(role.ask(do="prepare", **work) for role in (fleet.controller, *fleet.consumers)))
    await asyncio.gather(*(role.ask(do="run", **work) for role in fleet.all))
    opened_ns = time.monotonic_ns()
    os.write(fleet.gate, bytes(PRODUCERS))
    answers = await asyncio.gather(*(role.answer() for role in fleet.all))
    produced, consumed = answers[1 : 1 + PRODUCERS], answers[1 + PRODUCERS :]
    checked = await asyncio.gather(*(role.ask(do="check", **work) for role in fleet.consumers))
    figures = {
        "total_ms": (max(answer["at_ns"] for answer in consumed) - opened_ns) / 1e6,
        "publish_ms": max(answer["part_ns"] for answer in produced) / 1e6,
        "read_ms": max(answer["part_ns"] for answer in consumed) / 1e6,
        "bytes_ms": max(answer.get("bytes_ns", 0) for answer in consumed) / 1e6,
        "moved_bytes": sum(answer["moved_bytes"] for answer in answers),
        "right": all(answer["right"] for answer in checked),
    }
    return checked_figures(round_, figures)


def checked_figures(round_: Round, figures: dict[str, Any]) -> dict[str, Any]:
    """`figures` unchanged. Raises ChecksumMismatch when a consumer's buffer is wrong."""
    if not figures["right"]:
        raise ChecksumMismatch(f"{round_.arm}: a consumer's buffer is not what the producers hold", REPORT)
    return figures


async def measure(arms: Sequence[str], sizes_mib: Sequence[float], rounds: int) -> dict[str, dict[str, Any]]:
    """Figures by size (MiB a worker) and arm. Within a round of a size every arm has its turn."""
    numbers = count(1)
    by_size: dict[str, dict[str, Any]] = {}
    phase(f"starting the processes of {len(arms)} arms")
    async with started(arms, max(Pattern.of(size).rows for size in sizes_mib)) as fleet:
        for size in sizes_mib:
            samples = {arm: RoundSamples() for arm in arms}
            for turn in counted(f"rounds of {size:g} MiB a worker", range(rounds + WARM_UP)):
                for arm in arms:
                    round_ = Round(arm, Pattern.of(size).rows, next(numbers))
                    figures = await one_round(fleet, round_)
                    if turn >= WARM_UP:
                        samples[arm].add(figures)
            by_size[f"{size:g}"] = {arm: taken.figures() for arm, taken in samples.items()}
            medians = ", ".join(f"{arm} {figures['ms']}" for arm, figures in by_size[f"{size:g}"].items())
            sys.stderr.write(f"{size:g} MiB a worker, ms: {medians}\n")
    return by_size
