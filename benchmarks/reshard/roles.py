"""The processes of `earl bench reshard`: trainer ranks with a published version, and readers.

A role is told its work as JSON lines on stdin and answers each on stdout. Times are nanoseconds of the
machine's monotonic clock; a round begins at one that the benchmark names.
"""

from __future__ import annotations

import asyncio
import json
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

from benchmarks.reshard.cases import CARRIER, DTYPE, VERSIONS, Case, held, layouts, owned, slices, values
from benchmarks.reshard.gather import GatherBroadcast
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


class Process:
    """What both have: the case, the data plane, and a loop that runs while something is asked."""

    def __init__(self, role: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.spec, self.case, self.rank = ModelSpec(**role["model"]), Case(**role["case"]), int(role["rank"])
        self.arenas, self.meeting = role["arenas"], role["meeting"]
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.config = DataPlaneConfig(arena_dir=self.arenas)
        self.redis = self.runner.run(_opened(role["redis"]))
        self.registry = Registry(self.redis, "{earl:bench}:", LEASE_S)


class Trainer(Process):
    """Each version in its slot, and the shards of one packed for gloo."""

    def start(self) -> dict[str, Any]:
        boxes = held(self.spec, self.case, self.rank)
        shapes = self.spec.shapes()
        slot_bytes = sum(occupied(CARRIER.itemsize * box.size) for box in boxes.values())
        opening = TensorStore.open(
            self.registry, self.config, Path(self.arenas), f"trainer-{self.rank}",
            incarnation=self.rank + 1, size_bytes=len(VERSIONS) * occupied(slot_bytes) + MARGIN_BYTES,
        )  # fmt: skip
        self.store = self.runner.run(opening)
        all_ranks = layouts(self.spec, self.case).items()
        classes = classes_of({name: (DTYPE, layout) for name, layout in all_ranks})
        parts = [(one, self.rank) for one in classes]
        slots = [self.store.reserve_classes(key(one, self.rank), parts, one) for one in VERSIONS]
        for name, box in boxes.items():
            mine = values(name, shapes[name])[box.slices()]
            for arrays, bits in zip(slots, VERSIONS.values(), strict=True):
                np.bitwise_xor(mine, bits, out=arrays[name])
        self.runner.run(self.store.publish([key(one, self.rank) for one in VERSIONS]))
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
        self.gloo = GatherBroadcast(self.spec, self.case, self.rank, self.meeting)
        self.gloo.pack(self.arrays)
        return {}

    def gather_broadcast(self, version: int) -> dict[str, Any]:
        self.gloo.send()
        return {}

    def close(self) -> None:
        self.runner.run(self.store.close())


class Reader(Process):
    """Arrays of its own, filled one way or another."""

    def start(self) -> dict[str, Any]:
        self.own = owned(self.spec, self.case, self.rank)
        shapes = self.spec.shapes()
        self.targets = {name: np.zeros(one.shape, CARRIER) for name, one in self.own.items()}
        self.expected = {name: np.empty(one.shape, CARRIER) for name, one in self.own.items()}
        for name, one in self.own.items():
            self.targets[name].fill(1)
            for part in one.parts:
                whole = values(part.source, shapes[part.source])
                self.expected[name][part.target.slices()] = whole[part.box.slices()]
        self.dispatcher = self.runner.run(Dispatcher.create(self.registry, self.config))
        ranks = range(self.case.trainers)
        self.keys = {version: tuple(key(version, rank) for rank in ranks) for version in VERSIONS}
        self.slices = Repeated(
            (part.source, part.box, self.targets[name][part.target.slices()])
            for name, one in self.own.items()
            for part in one.parts
        )
        self.threads = ThreadPoolExecutor(COPY_THREADS)
        return {}

    def join(self, work: dict[str, Any]) -> dict[str, Any]:
        """Meet the others, and map the slots for the floor."""
        place = self.case.trainers + self.rank
        self.gloo = GatherBroadcast(self.spec, self.case, place, self.meeting)
        memory = [_mapped(said["path"]) for said in work["trainers"]]
        boxes = [held(self.spec, self.case, rank) for rank in range(self.case.trainers)]
        # By version and trainer rank.
        self.copies: dict[int, list[list[tuple[np.ndarray, np.ndarray]]]] = {}
        for slot, version in enumerate(VERSIONS):
            copies = self.copies[version] = [[] for _ in memory]
            for one in slices(self.spec, self.case, self.rank):
                offset = work["trainers"][one.trainer]["offsets"][slot][one.source]
                shape = boxes[one.trainer][one.source].shape
                whole = np.ndarray(shape, CARRIER, memory[one.trainer], offset)
                pair = self.targets[one.own][one.at.slices()], whole[one.box.slices()]
                copies[one.trainer].append(pair)
        return {}

    def earl(self, version: int) -> dict[str, Any]:
        wanted = VersionRead(self.keys[version], self.slices)
        receipt = self.runner.run(self.dispatcher.read([wanted], WAIT_S))
        return {"moved_bytes": receipt.size_bytes, "path": receipt.path}

    def memcpy(self, version: int) -> dict[str, Any]:
        list(self.threads.map(_copy, self.copies[version]))
        return {}

    def gather_broadcast(self, version: int) -> dict[str, Any]:
        self.gloo.receive(self.targets, self.spec)
        return {}

    def check(self, work: dict[str, Any]) -> dict[str, Any]:
        """Whether every element is right; then they are wrong again, for any version."""
        bits = VERSIONS[work["version"]]
        right = all(np.array_equal(self.targets[name], one ^ bits) for name, one in self.expected.items())
        for name, one in self.expected.items():
            np.bitwise_not(one, out=self.targets[name])
        return {"right": right}

    def close(self) -> None:
        self.runner.run(self.dispatcher.close())


class Peak:
    """The most memory of a span that the process did not have before, without files that it mapped."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        self._before = resident()

    def extra_bytes(self) -> int:
        before, after = self._before, resident()
        mapped = sum(after[field] - before[field] for field in ("RssFile", "RssShmem"))
        return max(0, after["VmHWM"] - before["VmRSS"] - mapped)


def resident() -> dict[str, int]:
    """Bytes by field of this process's status."""
    found = re.findall(r"^(VmHWM|VmRSS|RssFile|RssShmem):\s+(\d+) kB$", _status(), re.MULTILINE)
    return {field: 1024 * int(kib) for field, kib in found}


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


async def _opened(url: str) -> Any:
    return open_redis(url)


def timed(process: Process, work: dict[str, Any]) -> dict[str, Any]:
    """A round of one way: when it ended, and what it took beside the arrays."""
    peak = Peak()
    time.sleep(max(0.0, (work["at_ns"] - time.monotonic_ns()) / 1e9))
    said = getattr(process, work["do"])(work["version"])
    return {**said, "ended_ns": time.monotonic_ns(), "extra_bytes": peak.extra_bytes()}


def main() -> None:
    role = json.loads(sys.stdin.readline())
    process = {"trainer": Trainer, "reader": Reader}[role["role"]](role)
    said = process.start()
    while True:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            break
        work = json.loads(line)
        said = timed(process, work) if "at_ns" in work else getattr(process, work["do"])(work)
    process.close()
    process.runner.run(process.redis.aclose())
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort an orderly exit


if __name__ == "__main__":
    main()
