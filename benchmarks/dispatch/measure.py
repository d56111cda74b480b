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

from benchmarks.children import REPORT
from benchmarks.dispatch import peers
from benchmarks.dispatch.arms import ARMS
from benchmarks.dispatch.member import Round
from benchmarks.dispatch.pattern import CONSUMERS, PRODUCERS, Pattern
from benchmarks.role import Role
from earl.bus import EmbeddedValkey
from earl.errors import ChecksumMismatch, MeasurementWrong

MODULE = "benchmarks.dispatch.roles"
WARM_UP = 1
# Of a producer's time, of a consumer's, and of the latter, once it was known what lies where.
PARTS_OF_TIME = ("publish_ms", "read_ms", "bytes_ms")


@dataclass(slots=True)
class Samples:
    """Of one arm at one size, a value a round: milliseconds, and bytes counted by whom they reached."""

    total_ms: list[float] = field(default_factory=list)
    parts_ms: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PARTS_OF_TIME})
    moved_bytes: set[int] = field(default_factory=set)

    def add(self, one: dict[str, Any]) -> None:
        """Of one round; parts only where the arm has them."""
        self.total_ms.append(one["total_ms"])
        self.moved_bytes.add(one["moved_bytes"])
        for name in self.parts_ms:
            if one.get(name):
                self.parts_ms[name].append(one[name])

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
class Fleet:
    """The processes of a run."""

    controller: Role
    producers: list[Role]
    consumers: list[Role]
    gate: int
    peers: Role | None

    @property
    def all(self) -> list[Role]:
        return [self.controller, *self.producers, *self.consumers]


@asynccontextmanager
async def started(arms: Sequence[str], rows: int) -> AsyncIterator[Fleet]:
    """Every process with its side of every arm open; `rows` is the most a producer will hold.

    Raises PeersAbsent when arms are asked for that are not EARL's to run and cannot run here.
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

        async def start(role: str, rank: int = 0, **fds: Any) -> Role:
            open_fds = [
                *fds.get("words_out", {}).values(),
                *(fds[one] for one in ("gate", "words_in") if one in fds),
            ]
            made, said = await Role.start(
                MODULE, pass_fds=open_fds, role=role, rank=rank, redis=url, arenas=arenas,
                directory=directory, arms=list(arms), rows=rows, known=known, **fds,
            )  # fmt: skip
            stack.push_async_callback(made.stop)
            for name, what in said["known"].items():
                known[name].update(what)
            return made

        gate_in, gate = pipe()
        words = {one: pipe() for one in ["controller", *map(str, range(CONSUMERS))]}
        words_out = {one: ends[1] for one, ends in words.items()}
        controller = await start("controller", words_in=words["controller"][0], words_out=words_out)
        producers = [
            await start("producer", rank, gate=gate_in, words_out=words_out) for rank in range(PRODUCERS)
        ]
        consumers = [await start("consumer", rank, words_in=words[str(rank)][0]) for rank in range(CONSUMERS)]
        beside = await peers.start(others, rows, directory) if others else None
        if beside is not None:
            stack.push_async_callback(beside.stop)
        yield Fleet(controller, producers, consumers, gate, beside)


async def one_round(fleet: Fleet, round_: Round) -> dict[str, Any]:
    """Milliseconds from the gate to the last consumer, and what the sides counted. Raises when wrong."""
    work = asdict(round_)
    if round_.arm not in ARMS:
        assert fleet.peers is not None
        return told(round_, await fleet.peers.ask(**work))
    await asyncio.gather(*(role.ask(do="prepare", **work) for role in fleet.producers))
    await asyncio.gather(*(role.ask(do="prepare", **work) for role in (fleet.controller, *fleet.consumers)))
    await asyncio.gather(*(role.ask(do="run", **work) for role in fleet.all))
    opened_ns = time.monotonic_ns()
    os.write(fleet.gate, bytes(PRODUCERS))
    said = await asyncio.gather(*(role.answer() for role in fleet.all))
    produced, consumed = said[1 : 1 + PRODUCERS], said[1 + PRODUCERS :]
    checked = await asyncio.gather(*(role.ask(do="check", **work) for role in fleet.consumers))
    found = {
        "total_ms": (max(one["at_ns"] for one in consumed) - opened_ns) / 1e6,
        "publish_ms": max(one["part_ns"] for one in produced) / 1e6,
        "read_ms": max(one["part_ns"] for one in consumed) / 1e6,
        "bytes_ms": max(one.get("bytes_ns", 0) for one in consumed) / 1e6,
        "moved_bytes": sum(one["moved_bytes"] for one in said),
        "right": all(one["right"] for one in checked),
    }
    return told(round_, found)


def told(round_: Round, found: dict[str, Any]) -> dict[str, Any]:
    """What was found, unless it is wrong."""
    if not found["right"]:
        raise ChecksumMismatch(f"{round_.arm}: a consumer's buffer is not what the producers hold", REPORT)
    return found


async def measure(arms: Sequence[str], sizes_mib: Sequence[float], rounds: int) -> dict[str, dict[str, Any]]:
    """Figures by size (MiB a worker) and arm. Within a round of a size every arm has its turn."""
    numbers = count(1)
    found: dict[str, dict[str, Any]] = {}
    async with started(arms, max(Pattern.of(size).rows for size in sizes_mib)) as fleet:
        for size in sizes_mib:
            samples = {arm: Samples() for arm in arms}
            for turn in range(rounds + WARM_UP):
                for arm in arms:
                    round_ = Round(arm, Pattern.of(size).rows, next(numbers))
                    one = await one_round(fleet, round_)
                    if turn >= WARM_UP:
                        samples[arm].add(one)
            found[f"{size:g}"] = {arm: one.figures() for arm, one in samples.items()}
            medians = ", ".join(f"{arm} {one['ms']}" for arm, one in found[f"{size:g}"].items())
            sys.stderr.write(f"{size:g} MiB a worker, ms: {medians}\n")
    return found
