"""The processes of `earl bench reshard --hosts`: a publisher; on other hosts a worker's copy, and engines.

    publisher: prepare (the next version's bits in a slot) ─► announce: changes, digests, descriptors
    copy:      bring (HostCopy, as in a rollout worker)    ─► engines: apply, from the copy into their arrays

A role reads its work as JSON lines on stdin and answers each on stdout. Times are nanoseconds of the
machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
import xxhash

from benchmarks.reshard.cases import CARRIER, DTYPE, values
from benchmarks.role import answer_commands
from earl.bus import Bus
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.tensor_classes import classes_of, held_bytes
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.memory.allocator import occupied
from earl.dispatch.publish.changes import ChangesPublisher
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.cached_plan import Repeated, VersionRead
from earl.dispatch.read.reader import Dispatcher
from earl.dispatch.registry.registry import Registry
from earl.models.spec import ModelSpec
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.pool.host_copy import HostCopy
from services.rollout.pool.replicas import Publication

RUN = "bench"
LEASE_S = 3600.0
MARGIN_BYTES = 1 << 20
SLOTS = 2
# The part of a version that changes may take: more than the densest that are measured.
CHANGES_FRACTION = 0.3


def digest(arrays: dict[str, np.ndarray]) -> str:
    """xxh3-64 of all arrays, in the order of their names."""
    state = xxhash.xxh3_64()
    for name in sorted(arrays):
        state.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def change(arrays: dict[str, np.ndarray], fraction: float, seed: int) -> None:
    """Changes this fraction of the elements, at random, to other random bits."""
    rng = np.random.default_rng(seed)
    for array in arrays.values():
        flat = array.reshape(-1)
        # An element that is drawn twice is changed once.
        drawn = round(-len(flat) * math.log1p(-fraction))
        index = rng.integers(0, len(flat), drawn)
        flat[index] ^= rng.integers(1, 1 << 16, drawn, CARRIER)


class HostProcess:
    """The part that all roles share: the model's shapes, the data plane at a host's address, and a loop."""

    def __init__(self, role: dict[str, Any]) -> None:
        self.role, self.shapes = role, ModelSpec(**role["model"]).shapes()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.config = DataPlaneConfig(
            arena_dir=role["arenas"],
            bind=role["address"],
            trusted_network=True,
            changes_fraction=CHANGES_FRACTION,
        )
        self.bus = self.runner.run(_connected(role["redis"]))
        self.registry = Registry(self.bus.redis, self.bus.prefix, LEASE_S)

    def close(self) -> None:
        self.runner.run(self.bus.close())


async def _connected(url: str) -> Bus:
    return await Bus.connect(url, RUN)


class VersionPublisher(HostProcess):
    """A trainer of one rank, with its versions in two slots."""

    def start(self) -> dict[str, Any]:
        layouts = {
            name: MeshLayout(shape, (1,), (("replicate",),), ("0",)) for name, shape in self.shapes.items()
        }
        self.held = [
            (each, 0) for each in classes_of({name: (DTYPE, layout) for name, layout in layouts.items()})
        ]
        slot_bytes = held_bytes(self.held)
        changes_bytes = int(slot_bytes * CHANGES_FRACTION)
        opening = TensorStore.open(
            self.registry, self.config, Path(self.role["arenas"]), "trainer-0", incarnation=1,
            size_bytes=SLOTS * (occupied(slot_bytes) + occupied(changes_bytes)) + MARGIN_BYTES,
        )  # fmt: skip
        self.store = self.runner.run(opening)
        self.coder = ChangesPublisher(self.store, changes_bytes)
        self.arrays: dict[str, np.ndarray] = {}
        return {}

    def prepare(self, work: dict[str, Any]) -> dict[str, Any]:
        """Puts the version into a slot: that before, with a fraction of its elements changed."""
        before, version = self.arrays, work["version"]
        self.arrays = self.store.reserve_classes(_key(version), self.held, version)
        for name, array in self.arrays.items():
            np.copyto(array, before[name] if before else values(name, self.shapes[name]))
        if before:
            change(self.arrays, work["fraction"], version)
        return {"digest": digest(self.arrays)}

    def announce(self, work: dict[str, Any]) -> dict[str, Any]:
        """Makes the version known, with its changes if they are asked for."""
        began_ns = time.monotonic_ns()
        self.runner.run(self._announce(work["version"], work["changes"]))
        return {"began_ns": began_ns, "known_ns": time.monotonic_ns(), "keys": [_key(work["version"])]}

    async def _announce(self, version: int, with_changes: bool) -> None:
        key = _key(version)
        changes: list[str] = []
        if with_changes:
            changes = await self.coder.code(key, version, self.held, self.arrays)
        descriptor, *_ = await self.store.publish([key, *changes])
        self.coder.published(descriptor, self.held, self.arrays)

    def withdraw(self, work: dict[str, Any]) -> dict[str, Any]:
        version = work["version"]
        keys = [key for key in self.store.keys if key.startswith(_key(version))]
        self.runner.run(self.store.remove(keys))
        return {}

    def close(self) -> None:
        self.runner.run(self.store.close())
        super().close()


class CopyingWorker(HostProcess):
    """A rollout worker's copy."""

    def start(self) -> dict[str, Any]:
        self.copy = HostCopy(
            EngineSpec(
                name=self.role["name"],
                model_dir="",
                redis_url=self.role["redis"],
                run=RUN,
                data_plane=self.config.model_dump_json(),
                arena_dir=self.role["arenas"],
            )
        )
        return {}

    def bring(self, work: dict[str, Any]) -> dict[str, Any]:
        """Reads the version into the copy."""
        publication = Publication(work["version"], work["version"], tuple(work["keys"]))
        before = self.copy.reads.changes
        given = self.runner.run(self.copy.bring(publication, work["deadline_s"]))
        paths = [total.path for total in self.copy.transfers]
        changed = self.copy.reads.changes > before
        return {
            "keys": list(given.keys),
            "changes": changed,
            "copied_ns": time.monotonic_ns(),
            "paths": paths,
        }

    def close(self) -> None:
        self.runner.run(self.copy.close())
        super().close()


class ApplyingEngine(HostProcess):
    """The arrays of an engine of tp 1, and no model that computes with them."""

    def start(self) -> dict[str, Any]:
        self.arrays = {name: np.ones(shape, CARRIER) for name, shape in self.shapes.items()}
        self.slices = Repeated((name, None, array) for name, array in self.arrays.items())
        self.dispatcher = self.runner.run(Dispatcher.create(self.registry, self.config))
        return {}

    def apply(self, work: dict[str, Any]) -> dict[str, Any]:
        """Copies the version out of the host's copy, verified."""
        read = VersionRead(tuple(work["keys"]), self.slices)
        receipt = self.runner.run(self.dispatcher.read([read], work["deadline_s"]))
        return {"ended_ns": time.monotonic_ns(), "path": receipt.path}

    def check(self, work: dict[str, Any]) -> dict[str, Any]:
        return {"digest": digest(self.arrays)}

    def close(self) -> None:
        self.runner.run(self.dispatcher.close())
        super().close()


def _key(version: int) -> str:
    return f"weights/{version}/trainer-0"


def main() -> None:
    answer_commands({"publisher": VersionPublisher, "copy": CopyingWorker, "engine": ApplyingEngine})
    sys.stdout.flush()


if __name__ == "__main__":
    main()
