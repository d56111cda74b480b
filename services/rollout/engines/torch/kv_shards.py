"""One rank's part of a hand-over of KV: it publishes its heads for other engines, and reads theirs.

    offer: cache rows ── copied during the steps ──► arena ─► descriptor in Redis      (until withdraw)
    take:  descriptors ─► Dispatcher.read ─► rows of held slots, in place (CPU) or through host memory

The arena is opened with the first offer, large enough for the tokens that come until the switch, and closed
when its last offer is withdrawn.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from earl.dispatch.layout.box import Box
from earl.dispatch.publish.tensor_store import TensorSpec, TensorStore
from earl.dispatch.read.resolve import Read
from earl.dispatch.transport.base import settle
from earl.errors import ArenaFull, ConfigError, DeadlineExceeded, EngineError
from earl.models.tp import rank_kv_heads
from earl.waiting import deadline
from services.rollout.engines.contract.data_thread import DataThread
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.contract.shard_report import KvShardReport
from services.rollout.engines.torch.kv_handover import SlotRows
from services.rollout.engines.torch.model_runner import ModelRunner

TENSOR = "kv"
# Tokens that a session may grow by between the first offer and the last without another arena.
GROWTH_TOKENS = 64


class KvShards:
    """Publishes and reads one rank's heads of the KV.

    The outcome of every call is a KvShardReport or an EarlError, taken from the data plane's thread.
    """

    def __init__(self, spec: EngineSpec, data: DataThread, runner: ModelRunner) -> None:
        self._spec, self._data, self._cache = spec, data, runner.cache
        self._model, self._rank = runner.spec, runner.tp.rank
        self._heads = rank_kv_heads(runner.spec, runner.tp.rank, runner.tp.size)
        self._stores: list[TensorStore] = []
        # Offers and withdrawals one after the other.
        self._changing = asyncio.Lock()
        data.on_close(self._close)

    def offer(self, call: int, key: str, rows: Sequence[SlotRows], version: int, deadline_s: float) -> None:
        """Publishes the rows under the key; they must stay as they are until the call ends."""
        self._start(call, self._offer(key, rows, version, deadline_s), f"offering {key}")

    def take(self, call: int, keys: Sequence[str], rows: Sequence[SlotRows], deadline_s: float) -> None:
        """Reads the rows; whatever the outcome, nothing writes into them after the call's end."""
        self._start(call, self._take(tuple(keys), rows, deadline_s), f"taking {', '.join(keys)}")

    def withdraw(self, call: int, key: str) -> None:
        """Frees what was published under the key, if anything was."""
        self._start(call, self._withdraw(key), f"withdrawing {key}")

    def _start(self, call: int, work, what: str) -> None:
        self._data.start(call, work, what, EngineError(f"{what}: the engine is ending"))

    # --- in the data plane's thread -----------------------------------------------------------

    async def _offer(
        self, key: str, rows: Sequence[SlotRows], version: int, deadline_s: float
    ) -> KvShardReport:
        clock = time.perf_counter()
        spec = TensorSpec(self._spec.dtype, self._shape(rows), self._box(0, _tokens(rows)))
        size_bytes = spec.held.size * self._cache.item_bytes
        late = DeadlineExceeded(
            f"engine {self._spec.name} rank {self._rank}: {size_bytes} bytes of KV were not published "
            f"within {deadline_s:g} s",
            "raise the deadline, or let the other engine compute it again",
        )
        async with deadline(deadline_s, late), self._changing:
            store = await self._store(size_bytes, len(rows))
            try:
                into = store.reserve(key, {TENSOR: spec}, version)[TENSOR]
                await self._copied(self._cache.copy_out, rows, into)
                await store.publish(key)
            except BaseException:
                await store.remove(key)
                raise
        return KvShardReport(size_bytes, time.perf_counter() - clock)

    async def _take(
        self, keys: tuple[str, ...], rows: Sequence[SlotRows], deadline_s: float
    ) -> KvShardReport:
        clock = time.perf_counter()
        dispatcher = await self._data.dispatcher()
        boxes = [self._box(part.offset, part.count) for part in rows]
        staging = None
        if self._cache.host is None:
            box = self._box(0, _tokens(rows))
            staging = np.empty(box.shape, self._cache.host_dtype)
        places = self._cache.places(rows, staging)
        reads = [Read(keys, TENSOR, box, into) for box, into in zip(boxes, places, strict=True)]
        receipt = await dispatcher.read(reads, deadline_s, replicas_equal=False)
        if staging is not None:
            await self._copied(self._cache.copy_in, rows, staging)
        return KvShardReport(receipt.size_bytes, time.perf_counter() - clock)

    async def _withdraw(self, key: str) -> KvShardReport:
        clock = time.perf_counter()
        async with self._changing:
            for store in [store for store in self._stores if key in store.keys]:
                await store.remove(key)
                if not store.keys:
                    self._stores.remove(store)
                    await store.close()
        return KvShardReport(0, time.perf_counter() - clock)

    async def _store(self, size_bytes: int, sessions: int) -> TensorStore:
        """Opens a store for so many bytes. Raises ArenaFull if there can be none."""
        for store in self._stores:
            if store.arena.largest_bytes >= size_bytes:
                return store
        if not self._spec.arena_dir:
            raise EngineError(
                f"engine {self._spec.name} was given no directory for arenas", "set EngineSpec.arena_dir"
            )
        growth = max(size_bytes // 4, sessions * GROWTH_TOKENS * self._cache.token_bytes)
        try:
            store = await TensorStore.open(
                await self._data.registry(),
                self._data.config,
                Path(self._spec.arena_dir),
                f"{self._spec.name}-kv-{self._rank}",
                incarnation=secrets.randbits(63),
                size_bytes=size_bytes + growth,
            )
        except ConfigError as error:
            raise ArenaFull(error.message, error.remedy) from error
        self._stores.append(store)
        return store

    async def _copied(self, copy, rows: Sequence[SlotRows], array: np.ndarray) -> None:
        """Runs copy(rows, array, stop) on a thread; returns, or raises, when that has ended."""
        stop = threading.Event()
        work = asyncio.ensure_future(asyncio.to_thread(copy, rows, array, stop))
        try:
            await asyncio.shield(work)
        finally:
            stop.set()
            await settle(work)

    async def _close(self) -> None:
        for store in self._stores:
            await store.close()

    def _shape(self, rows: Sequence[SlotRows]) -> tuple[int, ...]:
        model = self._model
        return (model.layers, 2, model.kv_heads, _tokens(rows), model.head_dim)

    def _box(self, offset: int, count: int) -> Box:
        """Returns the box of this rank's heads of tokens [offset, offset + count)."""
        first, stop = self._heads
        model = self._model
        return Box((0, 0, first, offset, 0), (model.layers, 2, stop, offset + count, model.head_dim))


def _tokens(rows: Sequence[SlotRows]) -> int:
    return sum(part.count for part in rows)
