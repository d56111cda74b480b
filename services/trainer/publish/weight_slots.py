"""Two slots of published weights in each rank's arena.

    publish(v):  retire v-2 ─► copy own shards into its slot ─► training goes on
                    │              └─► I/O thread: digests ─► descriptors ─► all ranks' ─► WeightsPublished
                    │ all ranks withhold their descriptors, then readers awaited: acknowledged, or lease ended
                    └─ a late reader finds the slot's generation changed: VersionGone

Promise: while anyone may read a slot, nobody writes it, so that the next optimizer step never changes
what is being read; WeightsPublished is sent once every rank's shards can be read.
Readers hold leases: earl.bus.reader_leases.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from earl.bus import Bus
from earl.bus.reader_leases import forget_readers, readers_of
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.describe.tensor_classes import TensorClass, classes_of, held_bytes
from earl.dispatch.memory.allocator import occupied
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.registry.registry import Registry
from earl.errors import BusUnavailable, EarlError
from services.trainer.model.sharded_policy import Shard
from services.trainer.publish.events import weights_published
from services.trainer.publish.pinned import PinnedMemory
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.process_group import Group

log = logging.getLogger(__name__)
T = TypeVar("T")

SLOTS = 2
POLL_S = 0.005
LONGEST_POLL_S = 0.1
CALL_S = 30.0
# What digests and a registry that is slow to answer take; longer than rank 0 waits for the others.
ANNOUNCE_S = 3 * CALL_S


def slot_bytes(shards: Sequence[Shard], dtype: str) -> int:
    """Arena bytes of one version of these shards in the model's dtype."""
    return held_bytes(published_classes(shards, dtype))


def published_classes(shards: Sequence[Shard], dtype: str) -> list[tuple[TensorClass, int]]:
    """Every shard's tensor, in classes, each with this rank's place on their mesh."""
    places: dict[TensorClass, int] = {}
    for place in sorted({shard.place for shard in shards}):
        of_place = {shard.name: (dtype, shard.layout) for shard in shards if shard.place == place}
        places |= dict.fromkeys(classes_of(of_place), place)
    return list(places.items())


def arena_bytes(shards: Sequence[Shard], dtype: str) -> int:
    """Returns the size of an arena for the slots of these shards."""
    return SLOTS * occupied(slot_bytes(shards, dtype))


class Weights(Protocol):
    """Weights to publish: a ShardedPolicy, or the shards of any module (`shards_of`).

    model_shards: this rank's. weights: each of them and its values, shaped as its box; a collective.
    """

    @property
    def model_shards(self) -> Sequence[Shard]: ...

    def weights(self) -> Iterator[tuple[Shard, torch.Tensor]]: ...


# A store with an arena of so many bytes for slots.
OpenStore = Callable[[int], Coroutine[Any, Any, TensorStore]]


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """The tensors published in one parallelism, and their slots.

    classes: of the tensors, each with this rank's place on their mesh. capacity_bytes: bytes of a version
    that a slot of the store holds.
    """

    policy: Weights
    classes: list[tuple[TensorClass, int]]
    store: TensorStore
    capacity_bytes: int


class WeightSlots:
    """The slots of one rank's published weights.

    Calls come from the computing thread, in the same order on every rank.

    When the ranks' parallelism changes, versions stay readable as they were published; the slots of the new
    one lie in the same arena if they fit there, else in another.
    name: of the trainer; its ranks' keys are weights/<version>/<name>-<rank>. lease_s: the longest
    that a reader may hold a slot, whatever its lease. hurry: once set, readers are not waited for
    (the trainer is leaving, and its memory with it), and the bus shortly.
    """

    def __init__(
        self,
        io: IoThread,
        store: TensorStore,
        registry: Registry,
        bus: Bus,
        group: Group,
        policy: Weights,
        *,
        name: str,
        dtype: str,
        lease_s: float,
        hurry: threading.Event | None = None,
        open_store: OpenStore | None = None,
    ) -> None:
        self._io = io
        self._registry = registry
        self._bus = bus
        self._group = group
        self._name = name
        self.dtype = dtype
        self._lease_s = lease_s
        self._hurry = hurry or threading.Event()
        self._open_store = open_store
        self._pinned = PinnedMemory(group.device)
        self._now = self._slots_of(policy, store, slot_bytes(policy.model_shards, dtype))
        # Versions in the slots, oldest first, and where each lies.
        self._held: dict[int, TensorStore] = {}
        # The version withheld last, on every rank; on rank 0, the wait for its readers.
        self._withheld = 0
        self._retiring: concurrent.futures.Future[None] | None = None
        # Makes the version that was copied last known; the same on every rank, whether there is one.
        self._announcing: concurrent.futures.Future[None] | None = None
        shards = policy.model_shards
        self._size_bytes = sum(int(np.prod(shard.shape)) * numpy_dtype(dtype).itemsize for shard in shards)

    def _slots_of(self, policy: Weights, store: TensorStore, capacity_bytes: int) -> SlotLayout:
        self._pinned.pin(store.arena.memory)
        return SlotLayout(policy, published_classes(policy.model_shards, self.dtype), store, capacity_bytes)

    def more_bytes(self, policy: Weights) -> int:
        """Bytes of a further arena, if `reserve` needs one for this policy; else 0."""
        fits = slot_bytes(policy.model_shards, self.dtype) <= self._now.capacity_bytes
        return 0 if fits else arena_bytes(policy.model_shards, self.dtype)

    def reserve(self, policy: Weights) -> SlotLayout:
        """Allocates slots for versions of the same model in another parallelism: to `adopt`, or to `discard`.

        Raises ConfigError where there is no memory for them.
        """
        more_bytes = self.more_bytes(policy)
        if not more_bytes:
            return self._slots_of(policy, self._now.store, self._now.capacity_bytes)
        assert self._open_store is not None
        store = self._io.run(self._open_store(more_bytes), CALL_S)
        return self._slots_of(policy, store, slot_bytes(policy.model_shards, self.dtype))

    def adopt(self, slots: SlotLayout) -> None:
        """Publishes versions in this layout from now on."""
        before, self._now = self._now, slots
        self._close_unused(before.store)

    def discard(self, slots: SlotLayout) -> None:
        """Gives back what was reserved for a layout that is not used."""
        self._close_unused(slots.store)

    def close(self) -> None:
        """Forgets all versions, and gives their arenas back, after the last one was made known."""
        if self._announcing is not None:
            try:
                self._announced(CALL_S)
            except EarlError as error:
                log.warning("the last version may not be known: %s", error)
        for store in {id(store): store for store in (*self._held.values(), self._now.store)}.values():
            self._close_store(store)
        self._held.clear()

    def _close_unused(self, store: TensorStore) -> None:
        if store is not self._now.store and store not in self._held.values():
            self._close_store(store)

    def _close_store(self, store: TensorStore) -> None:
        self._pinned.unpin(store.arena.memory)
        self._io.run(store.close(), CALL_S)

    def key(self, version: int, rank: int) -> str:
        return f"weights/{version}/{self._name}-{rank}"

    def retire_early(self) -> None:
        """Starts freeing the slot that the next version needs, while the step that makes it computes.

        A collective: no rank may renew its descriptor once readers are waited for. Raises as `settle`.
        """
        self.settle()
        if len(self._held) < SLOTS or self._withheld == next(iter(self._held)):
            return
        self._withheld, store = next(iter(self._held.items()))
        mine = [self.key(self._withheld, self._group.rank)]
        self._together(lambda: self._call(store.withhold(mine)))
        if self._group.leads:
            self._retiring = self._io.submit(self._retire(self._withheld))

    def publish(self, version: int) -> None:
        """Copies the parameters as they are now into a slot, and begins to make them known. A collective.

        The parameters may change as soon as it returns; `settle` waits until the version can be read. Raises
        BusUnavailable, DeadlineExceeded, and does so on every rank, so that they proceed alike.
        """
        if version in self._held:
            return
        self.settle()
        old = self._retire_oldest()
        key = self.key(version, self._group.rank)
        arrays = self._together(lambda: self._call(self._reserve(key, version, old)))
        for _, store in old:
            self._close_unused(store)
        _copy(self._now.policy, arrays, self.dtype)
        self._held[version] = self._now.store
        self._announcing = self._io.submit(self._announce(version, key, self._now.store))

    def settle(self) -> None:
        """Returns once the version that was copied last can be read and was announced. A collective.

        Raises BusUnavailable, DeadlineExceeded on every rank if one could not publish it.
        """
        if self._announcing is not None:
            self._together(self._announced)

    def check(self) -> None:
        """Raises why the version that was copied last cannot be read, if that is known on this rank. No
        collective."""
        if self._announcing is not None and self._announcing.done():
            self._announcing.result()

    def _announced(self, timeout_s: float = ANNOUNCE_S) -> None:
        assert self._announcing is not None
        announcing, self._announcing = self._announcing, None
        self._io.wait(announcing, "publishing a version", timeout_s, self._hurry)

    async def _announce(self, version: int, key: str, store: TensorStore) -> None:
        await store.publish([key])
        if not self._group.leads:
            return
        keys = [self.key(version, rank) for rank in range(self._group.size)]
        poll_s = POLL_S
        try:
            async with asyncio.timeout(CALL_S):
                while self._group.size > 1 and await self._registry.renew(keys):
                    await asyncio.sleep(poll_s)
                    poll_s = min(2 * poll_s, LONGEST_POLL_S)
        except TimeoutError:
            raise BusUnavailable("another rank could not publish its weights", "see its log") from None
        await self._bus.publish(weights_published(version, keys, self._size_bytes))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._io.run(work, CALL_S, self._hurry)

    def _together(self, work: Callable[[], T]) -> T:
        """Does `work` on every rank and returns its result; raises on all if one could not. A collective."""
        failure: EarlError = BusUnavailable("another rank could not publish its weights", "see its log")
        done: list[T] = []
        try:
            done.append(work())
        except EarlError as error:
            failure = error
        if not self._group.agree(bool(done)):
            raise failure
        return done[0]

    def _retire_oldest(self) -> list[tuple[str, TensorStore]]:
        """The key and store of the version, if any, whose slot the next one takes; nobody reads it now."""
        if len(self._held) < SLOTS:
            return []
        version = next(iter(self._held))
        self.retire_early()
        self._together(self._retired)
        return [(self.key(version, self._group.rank), self._held.pop(version))]

    def _retired(self) -> None:
        if self._retiring is not None:
            retiring, self._retiring = self._retiring, None
            self._io.wait(retiring, "retiring a version", self._lease_s + CALL_S, self._hurry)

    async def _reserve(
        self, key: str, version: int, old: Sequence[tuple[str, TensorStore]]
    ) -> dict[str, np.ndarray]:
        for withheld, store in old:
            store.free(withheld)
        if self._group.size > 1:
            # One of this rank's earlier life would be taken for the one that is to come.
            await self._registry.remove([key])
        # Every slot of an arena is of one size: else a larger one would not fit where a smaller one was.
        return self._now.store.reserve_classes(key, self._now.classes, version, self._now.capacity_bytes)

    async def _retire(self, version: int) -> None:
        """Waits for those that are reading a withheld version."""
        # Once more: another rank's renewal may have been in progress while it withheld.
        await self._registry.remove([self.key(version, rank) for rank in range(self._group.size)])
        poll_s = POLL_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._lease_s):
                while not self._hurry.is_set() and await readers_of(self._bus, version):
                    await asyncio.sleep(poll_s)
                    poll_s = min(2 * poll_s, LONGEST_POLL_S)
        await forget_readers(self._bus, version)


@torch.no_grad()
def _copy(policy: Weights, arrays: dict[str, np.ndarray], dtype: str) -> None:
    """Copies shards into the arena, cast to the model's dtype; returns when they are there. A collective."""
    away: set[torch.device] = set()
    for shard, values in policy.weights():
        if not shard.box.size:
            continue
        target = torch.from_numpy(arrays[shard.name])
        if dtype == "bfloat16":
            target = target.view(torch.bfloat16)
        if values.device == target.device:
            target.copy_(values)
            continue
        # A copy between devices moves the source's dtype: cast first, it moves no more than is kept.
        target.copy_(values.to(target.dtype), non_blocking=True)
        away.add(values.device)
    for device in away:
        torch.cuda.synchronize(device)
