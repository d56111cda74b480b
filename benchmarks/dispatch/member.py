"""The parts of every process of the benchmark: its rank, its access to the data plane, and ready signals.

A word is one byte through a pipe: it tells a reader that a producer (or a controller) is ready. It is
the same for every arm, and waiting for a word blocks in the kernel: no event loop has to wake up for it.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dispatch.pattern import PRODUCERS, Pattern
from earl.bus.connection import open_redis
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher
from earl.dispatch.registry.registry import Registry
from earl.errors import DeadlineExceeded

WAIT_S = 60.0
LOOPBACK = "127.0.0.1"
# The data plane's transports: each is an arm of its own and another through a controller. None verifies
# checksums, because the arms that they are compared with do not.
TRANSPORTS = {
    "shm": DataPlaneConfig(transport="shm", checksums="off"),
    "ucx": DataPlaneConfig(transport="ucx", checksums="off"),
    "nixl": DataPlaneConfig(transport="nixl", checksums="off"),
}
# How runs read by default: owners compute checksums as they publish, and readers compare them.
VERIFIED = "shm_verified"
PLANES = {**TRANSPORTS, VERIFIED: DataPlaneConfig(transport="shm")}
# Beside the tensors: alignment.
_SPARE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement of one arm. number: unique within the run."""

    arm: str
    rows: int
    number: int

    @property
    def pattern(self) -> Pattern:
        return Pattern(self.rows)


@dataclass(frozen=True, slots=True)
class Done:
    """The work of one side in a round: the bytes that reached it, and the nanoseconds of its share of time.

    bytes_ns: the share of part_ns after planning, which moved bytes; 0 where the arm does not measure it.
    """

    moved_bytes: int = 0
    part_ns: int = 0
    bytes_ns: int = 0


class Member:
    """One process. known: what the arms' other sides answered when they opened, by arm."""

    def __init__(self, role: dict[str, Any]) -> None:
        self.role: str = role["role"]
        self.rank: int = role.get("rank", 0)
        self.known: dict[str, Any] = role["known"]
        self.rows: int = role["rows"]
        self.directory = Path(role["directory"])
        self._arenas = Path(role["arenas"])
        self.address: str = role.get("bind", LOOPBACK)
        self._gate: int = role.get("gate", -1)
        self._words_in: int = role.get("words_in", -1)
        self._words_out: dict[str, int] = role.get("words_out", {})
        self._stack = AsyncExitStack()
        self._redis = open_redis(role["redis"])
        self._stack.push_async_callback(self._redis.aclose)
        self.registry = Registry(self._redis, "{earl:bench}:", 60.0)
        self._stores: dict[str, TensorStore] = {}
        self._dispatchers: dict[str, Dispatcher] = {}
        # What a producer produced this round, or what a consumer fills.
        self.array = np.empty((0, 0), np.int32)

    def data_plane(self, transport: str) -> DataPlaneConfig:
        """The transport's settings; off loopback at this process's address, on a network that is trusted."""
        if self.address == LOOPBACK:
            return PLANES[transport]
        return PLANES[transport].model_copy(update={"bind": self.address, "trusted_network": True})

    async def store(self, transport: str) -> TensorStore:
        """This process's arena for a transport, opened on first use; a controller's has all the rows."""
        if transport not in self._stores:
            workers = PRODUCERS if self.role == "controller" else 1
            self._stores[transport] = await TensorStore.open(
                self.registry,
                self.data_plane(transport),
                self._arenas,
                f"{self.role}-{self.rank}-{transport}",
                incarnation=1,
                size_bytes=workers * (Pattern(self.rows).worker_bytes + _SPARE_BYTES),
            )
            self._stack.push_async_callback(self._stores[transport].close)
        return self._stores[transport]

    async def dispatcher(self, transport: str) -> Dispatcher:
        """This process's reader over a transport, made on first use."""
        if transport not in self._dispatchers:
            made = await Dispatcher.create(self.registry, self.data_plane(transport))
            self._dispatchers[transport] = made
            self._stack.push_async_callback(made.close)
        return self._dispatchers[transport]

    async def forget(self) -> None:
        """Frees what the round before left in the arenas."""
        for store in self._stores.values():
            await store.remove(store.keys)

    def pass_gate(self) -> None:
        """Returns once the gate is open. Raises DeadlineExceeded when it stays closed."""
        self._receive(self._gate, 1)

    def words(self, count: int) -> list[int]:
        """Waits for `count` words and returns their senders' ranks. Raises DeadlineExceeded."""
        return list(self._receive(self._words_in, count))

    def word(self, to: Iterable[int | str]) -> None:
        """Tells consumers (by rank) or the "controller" that this producer is ready."""
        for receiver in to:
            os.write(self._words_out[str(receiver)], bytes([self.rank]))

    async def close(self) -> None:
        await self._stack.aclose()

    def _receive(self, pipe: int, count: int) -> bytes:
        received = b""
        while len(received) < count:
            if not select.select([pipe], [], [], WAIT_S)[0]:
                raise DeadlineExceeded(
                    f"{self.role} {self.rank} waited {WAIT_S} s for a word", "see why another failed, above"
                )
            received += os.read(pipe, count - len(received))
        return received
