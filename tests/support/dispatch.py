"""Support for tests of the data plane: one owner here with one reader, owners in their own processes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from earl.bus.connection import open_redis
from earl.bus.embedded import EmbeddedValkey
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.descriptor import Descriptor
from earl.dispatch.describe.regions import ArenaRef, RegionRef
from earl.dispatch.layout.box import Box
from earl.dispatch.memory.arena_file import arena_directory
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher, Read, Receipt
from earl.dispatch.registry.codec import encode
from earl.dispatch.registry.registry import Registry
from tests.support.content import MIB
from tests.support.dispatch_owner import run_owner
from tests.support.dispatch_reader import run_reader
from tests.support.forked import Forked
from tests.support.preloaded import preloaded

# Ends what hangs: a busy machine is slow, and need not fail for it.
READ_S = 60.0
PREFIX = "{earl:contract}:"
PATHS = {"shm": "shm", "ucx": "ucx-tcp", "nixl": "nixl-tcp"}
# Parameters of a fixture that opens a plane: every transport, one that is not installed skipped by name.
TRANSPORTS = [
    "shm",
    "ucx",
    pytest.param(
        "nixl",
        marks=pytest.mark.skipif(find_spec("nixl_cu12") is None, reason="install earl[nixl]"),
    ),
]


@dataclass
class Plane:
    """One owner in this process (its serving process beside it) and one reader."""

    kind: str
    config: DataPlaneConfig
    registry: Registry
    url: str
    store: TensorStore
    reader: Dispatcher

    async def read(
        self, key: str, name: str, into: np.ndarray, box: Box | None = None, deadline_s: float = READ_S
    ) -> Receipt:
        return await self.reader.read([Read((key,), name, box, into)], deadline_s)

    async def clear(self) -> None:
        """Free whatever a test left: one that failed fails alone."""
        await self.store.remove(self.store.keys)
        for sequences in self.store._sequences:
            await sequences.remove(sequences.names)
        left = list(self.store.arena._live.values())
        for region in left:
            region.free()
        assert not left, "regions that no store holds were left behind"


@asynccontextmanager
async def open_plane(kind: str, directory: Path, size_bytes: int = 320 * MIB) -> AsyncIterator[Plane]:
    """A Valkey, an owner with an arena of this size, and a reader; nothing is left behind."""
    valkey = EmbeddedValkey()
    url = await valkey.start(directory)
    redis = open_redis(url)
    registry = Registry(redis, PREFIX, 60.0)
    config = DataPlaneConfig(transport=kind)  # type: ignore[arg-type]
    arenas = arena_directory(config, directory)
    try:
        with preloaded():
            store = await TensorStore.open(
                registry, config, arenas, "owner", incarnation=1, size_bytes=size_bytes
            )
        async with store, await Dispatcher.create(registry, config) as reader:
            yield Plane(kind, config, registry, url, store, reader)
        assert not arenas.exists()
    finally:
        await redis.aclose()
        await valkey.stop()


def plane_fixtures(kinds: Sequence[Any] = TRANSPORTS, size_bytes: int = 320 * MIB) -> tuple[Any, Any]:
    """Two fixtures: a plane of each kind, opened once a module; and that one, cleared after each test."""

    @pytest_asyncio.fixture(scope="module", loop_scope="module", params=kinds)
    async def opened(request, tmp_path_factory) -> AsyncIterator[Plane]:
        directory = tmp_path_factory.mktemp(request.param)
        async with open_plane(request.param, directory, size_bytes) as made:
            yield made

    @pytest_asyncio.fixture(loop_scope="module")
    async def plane(opened: Plane) -> AsyncIterator[Plane]:
        yield opened
        await opened.clear()

    return opened, plane


def changed(descriptor: Descriptor, key: str, change: Callable[[RegionRef], RegionRef]) -> Descriptor:
    """The same descriptor under another key, every region replaced by change(region)."""
    tensors = tuple(
        dataclasses.replace(
            t, shards=tuple(dataclasses.replace(s, region=change(s.region)) for s in t.shards)
        )
        for t in descriptor.tensors
    )
    return dataclasses.replace(descriptor, key=key, tensors=tensors)


def served(arena: ArenaRef) -> str:
    """host:port of the process that serves it, by whichever wire."""
    return arena.ucx_address or arena.nixl_address


class OwnerProcess:
    """tests/support/dispatch_owner.py, running."""

    def __init__(self, process: Forked, key: str, incarnation: int, directory: Path, size_bytes: int) -> None:
        self.process, self.key, self.incarnation, self.directory = process, key, incarnation, directory
        self.size_bytes = size_bytes
        self.serving_pid = 0

    @classmethod
    async def start(
        cls,
        config: DataPlaneConfig,
        url: str,
        prefix: str,
        directory: Path,
        owner: str,
        size_bytes: int,
        incarnation: int = 11,
        lease_s: float = 60.0,
    ) -> OwnerProcess:
        arenas = arena_directory(config, directory)
        process = Forked(run_owner, config, url, prefix, arenas, owner, incarnation, size_bytes, lease_s)
        started = cls(process, f"held/{owner}", incarnation, arenas, size_bytes)
        started.serving_pid = await asyncio.to_thread(process.receive, READ_S)
        return started

    async def kill(self) -> None:
        """SIGKILL; whoever serves its arena notices by itself."""
        self.process.kill()
        await self.ended()

    async def ended(self) -> None:
        """Returns once its process is gone."""
        await asyncio.to_thread(self.process.wait, READ_S)

    def tell(self, order: str) -> None:
        self.process.send(order)

    async def close(self) -> None:
        if self.process.running:
            self.tell("close")
            await self.ended()
        for path in self.directory.glob("*"):
            path.unlink()
        if self.directory.exists():
            self.directory.rmdir()


class ReaderProcess:
    """tests/support/dispatch_reader.py, running."""

    def __init__(self, process: Forked) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, config: DataPlaneConfig, url: str, prefix: str, key: str, size_bytes: int
    ) -> ReaderProcess:
        """Returns when it is about to read for the first time."""
        process = Forked(run_reader, config, url, prefix, key, size_bytes)
        assert await asyncio.to_thread(process.receive, READ_S) == "ready"
        return cls(process)

    async def reading(self) -> None:
        """Returns when it has read once and reads on."""
        assert await asyncio.to_thread(self._process.receive, READ_S) == "read"

    def kill(self) -> None:
        self._process.kill()


async def publish_descriptors(registry: Registry, descriptors: Sequence[Descriptor]) -> None:
    """Set these descriptors, as an owner would that publishes them."""
    encoded = {descriptor.key: encode(descriptor) for descriptor in descriptors}
    await registry.publish_encoded(encoded, replace=True)
