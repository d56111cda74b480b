"""The processes of `earl bench reshard`: trainer ranks with a published version, and readers.

A role reads its work as JSON lines on stdin and answers each on stdout. Times are nanoseconds of the
machine's monotonic clock; a round begins at a time that the benchmark names.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvloop

from benchmarks.reshard.cases import (
    CARRIER,
    DTYPE,
    VERSIONS,
    ReshardCase,
    layouts,
    owned,
    rank_boxes,
    slices,
    values,
)
from benchmarks.reshard.gather import GatherBroadcast
from benchmarks.role import answer_commands, carry_out
from earl.bus.connection import open_redis
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.tensor_classes import classes_of
from earl.dispatch.memory.allocator import occupied
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher, Repeated, VersionRead
from earl.dispatch.registry.registry import Registry
from earl.models.spec import ModelSpec

LEASE_S = 3600.0
WAIT_S = 60.0
MARGIN_BYTES = 1 << 20
# As many as a reader copies with: earl.dispatch.transport.shm.
COPY_THREADS = 2


def key(version: int, trainer: int) -> str:
    return f"weights/{version}/trainer-{trainer}"


class ReshardProcess:
    """The part that trainer ranks and readers share: the case, the data plane, and a loop run on demand."""

    def __init__(self, role: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.spec, self.case, self.rank = (
            ModelSpec(**role["model"]),
            ReshardCase(**role["case"]),
            int(role["rank"]),
        )
        self.arenas, self.rendezvous = role["arenas"], role["rendezvous"]
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.config = DataPlaneConfig(arena_dir=self.arenas, checksums="off")
        self.redis = self.runner.run(_open_valkey(role["redis"]))
        self.registry = Registry(self.redis, "{earl:bench}:", LEASE_S)


class TrainerProcess(ReshardProcess):
    """A trainer rank: publishes each version in its slot, and packs the first version's shards for gloo."""

    def start(self) -> dict[str, Any]:
        boxes = rank_boxes(self.spec, self.case, self.rank)
        shapes = self.spec.shapes()
        slot_bytes = sum(occupied(CARRIER.itemsize * box.size) for box in boxes.values())
        opening = TensorStore.open(
            self.registry, self.config, Path(self.arenas), f"trainer-{self.rank}",
            incarnation=self.rank + 1, size_bytes=len(VERSIONS) * occupied(slot_bytes) + MARGIN_BYTES,
        )  # fmt: skip
        self.store = self.runner.run(opening)
        all_ranks = layouts(self.spec, self.case).items()
        classes = classes_of({name: (DTYPE, layout) for name, layout in all_ranks})
        parts = [(tensor_class, self.rank) for tensor_class in classes]
        slots = [self.store.reserve_classes(key(version, self.rank), parts, version) for version in VERSIONS]
        for name, box in boxes.items():
            mine = values(name, shapes[name])[box.slices()]
            for arrays, bits in zip(slots, VERSIONS.values(), strict=True):
                np.bitwise_xor(mine, bits, out=arrays[name])
        self.runner.run(self.store.publish([key(version, self.rank) for version in VERSIONS]))
        self.arrays = slots[0]
        first = self.store.arena.memory.__array_interface__["data"][0]
        return {
            "path": self.store.arena.ref.path,
            "offsets": [
                {n: a.__array_interface__["data"][0] - first for n, a in arrays.items()} for arrays in slots
            ],
            "slot_bytes": slot_bytes,
        }

    def join(self, work: dict[str, Any]) -> dict[str, Any]:
        self.gloo = GatherBroadcast(self.spec, self.case, self.rank, self.rendezvous)
        self.gloo.pack(self.arrays)
        return {}

    def gather_broadcast(self, version: int) -> dict[str, Any]:
        self.gloo.send()
        return {}

    def close(self) -> None:
        self.runner.run(self.store.close())


class ReaderProcess(ReshardProcess):
    """A reader, whose arrays every way of resharding fills in turn."""

    def start(self) -> dict[str, Any]:
        self.parameters = owned(self.spec, self.case, self.rank)
        shapes = self.spec.shapes()
        self.targets = {
            name: np.zeros(parameter.shape, CARRIER) for name, parameter in self.parameters.items()
        }
        self.expected = {
            name: np.empty(parameter.shape, CARRIER) for name, parameter in self.parameters.items()
        }
        for name, parameter in self.parameters.items():
            self.targets[name].fill(1)
            for part in parameter.parts:
                whole = values(part.source, shapes[part.source])
                self.expected[name][part.target.slices()] = whole[part.box.slices()]
        self.dispatcher = self.runner.run(Dispatcher.create(self.registry, self.config))
        ranks = range(self.case.trainers)
        self.keys = {version: tuple(key(version, rank) for rank in ranks) for version in VERSIONS}
        self.slices = Repeated(
            (part.source, part.box, self.targets[name][part.target.slices()])
            for name, parameter in self.parameters.items()
            for part in parameter.parts
        )
        self.threads = ThreadPoolExecutor(COPY_THREADS)
        return {}

    def join(self, work: dict[str, Any]) -> dict[str, Any]:
        """Joins gloo's group, and maps the trainer ranks' slots for memcpy."""
        place = self.case.trainers + self.rank
        self.gloo = GatherBroadcast(self.spec, self.case, place, self.rendezvous)
        memory = [_mapped(slot["path"]) for slot in work["trainers"]]
        boxes = [rank_boxes(self.spec, self.case, rank) for rank in range(self.case.trainers)]
        # By version and trainer rank.
        self.copies: dict[int, list[list[tuple[np.ndarray, np.ndarray]]]] = {}
        for slot, version in enumerate(VERSIONS):
            copies = self.copies[version] = [[] for _ in memory]
            for copied in slices(self.spec, self.case, self.rank):
                offset = work["trainers"][copied.trainer]["offsets"][slot][copied.source]
                shape = boxes[copied.trainer][copied.source].shape
                whole = np.ndarray(shape, CARRIER, memory[copied.trainer], offset)
                pair = self.targets[copied.parameter][copied.target.slices()], whole[copied.box.slices()]
                copies[copied.trainer].append(pair)
        return {}

    def earl(self, version: int) -> dict[str, Any]:
        version_read = VersionRead(self.keys[version], self.slices)
        receipt = self.runner.run(self.dispatcher.read([version_read], WAIT_S))
        return {"moved_bytes": receipt.size_bytes, "path": receipt.path}

    def memcpy(self, version: int) -> dict[str, Any]:
        list(self.threads.map(_copy, self.copies[version]))
        return {}

    def gather_broadcast(self, version: int) -> dict[str, Any]:
        self.gloo.receive(self.targets, self.spec)
        return {}

    def check(self, work: dict[str, Any]) -> dict[str, Any]:
        """Returns whether every element is right. Afterwards every element is wrong for any version."""
        bits = VERSIONS[work["version"]]
        right = all(
            np.array_equal(self.targets[name], expected ^ bits) for name, expected in self.expected.items()
        )
        for name, expected in self.expected.items():
            np.bitwise_not(expected, out=self.targets[name])
        return {"right": right}

    def close(self) -> None:
        self.runner.run(self.dispatcher.close())


class Peak:
    """The peak of memory since construction beyond what the process had then, mapped files not counted."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
        self._before = resident()

    def extra_bytes(self) -> int:
        before, after = self._before, resident()
        mapped = sum(after[field] - before[field] for field in ("RssFile", "RssShmem"))
        return max(0, after["VmHWM"] - before["VmRSS"] - mapped)


def resident() -> dict[str, int]:
    """Bytes by field of this process's status."""
    fields = re.findall(r"^(VmHWM|VmRSS|RssFile|RssShmem):\s+(\d+) kB$", _status(), re.MULTILINE)
    return {field: 1024 * int(kib) for field, kib in fields}


def _status() -> str:
    return Path("/proc/self/status").read_text()


def _copy(copies: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for target, source in copies:
        np.copyto(target, source)


def _mapped(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDONLY)
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


async def _open_valkey(url: str) -> Any:
    return open_redis(url)


def timed(process: ReshardProcess, work: dict[str, Any]) -> dict[str, Any]:
    """Runs a round of one way; the answer has its end in ns and the memory that it took beside the arrays."""
    peak = Peak()
    time.sleep(max(0.0, (work["at_ns"] - time.monotonic_ns()) / 1e9))
    answer = getattr(process, work["do"])(work["version"])
    return {**answer, "ended_ns": time.monotonic_ns(), "extra_bytes": peak.extra_bytes()}


def perform(process: ReshardProcess, work: dict[str, Any]) -> dict[str, Any]:
    return timed(process, work) if "at_ns" in work else carry_out(process, work)


def main() -> None:
    process = answer_commands({"trainer": TrainerProcess, "reader": ReaderProcess}, perform)
    process.runner.run(process.redis.aclose())
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort an orderly exit


if __name__ == "__main__":
    main()
