"""Two slots of published weights in each rank's arena.

    publish(v):  retire v-2 ─► copy own shards into its slot ─► training goes on
                    │              └─► I/O thread: changes, digests ─► descriptors, all ranks' ─► event
                    │ all ranks withhold their descriptors, then readers awaited: acknowledged, or lease ended
                    └─ a late reader finds the slot's generation changed: VersionGone

Promise: while anyone may read a slot, nobody writes it, so that the next optimizer step never changes
what is being read; the event, WeightsPublished, is sent once every rank's shards can be read.
Readers hold leases: earl.bus.reader_leases.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from earl.bus import Bus
from earl.bus.reader_leases import forget_readers, readers_of
from earl.dispatch.changes.record import changes_key
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.describe.tensor_classes import TensorClass, classes_of, held_bytes
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.memory.allocator import occupied
from earl.dispatch.publish.changes import ChangesPublisher
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.registry.registry import Registry
from earl.errors import BusUnavailable, EarlError
from earl.models.spec import ModelSpec
from earl.models.tp import legal_parallelisms
from services.trainer.model.shard_layout import place_of, shard_layout
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


def largest_slot_bytes(spec: ModelSpec, rank: int, ranks: int, dtype: str) -> int:
    """Arena bytes of one version on a rank, in the parallelism in which so many ranks take most on it."""
    return max(
        held_bytes(
            _classes(
                [
                    (name, shard_layout(name, shape, spec, tp, ranks), place_of(name, rank, tp, ranks))
                    for name, shape in spec.shapes().items()
                ],
                dtype,
            )
        )
        for tp in {parallelism.tp for parallelism in legal_parallelisms(spec, ranks)}
    )


def published_classes(shards: Sequence[Shard], dtype: str) -> list[tuple[TensorClass, int]]:
    """Every shard's tensor, in classes, each with this rank's place on their mesh."""
    return _classes([(shard.name, shard.layout, shard.place) for shard in shards], dtype)


def _classes(tensors: Sequence[tuple[str, MeshLayout, int]], dtype: str) -> list[tuple[TensorClass, int]]:
    """Tensors, each with its layout and this rank's place there, in classes with that place."""
    places: dict[TensorClass, int] = {}
    for chosen in sorted({place for _, _, place in tensors}):
        of_place = {name: (dtype, layout) for name, layout, place in tensors if place == chosen}
        places |= dict.fromkeys(classes_of(of_place), chosen)
    return list(places.items())


def arena_bytes(capacity_bytes: int, changes_fraction: float = 0.0) -> int:
    """Returns the size of an arena for slots of so many bytes each, and for changes of this part of them."""
    changes_bytes = _changes_bytes(capacity_bytes, changes_fraction)
    return SLOTS * (occupied(capacity_bytes) + (occupied(changes_bytes) if changes_bytes else 0))


def _changes_bytes(capacity_bytes: int, fraction: float) -> int:
    return int(capacity_bytes * fraction)


class Weights(Protocol):
    """Weights to publish: a ShardedPolicy, or the shards of any module (`shards_of`).

    model_shards: this rank's. weights: each of them and its values, shaped as its box; a collective.
    """

    @property
    def model_shards(self) -> Sequence[Shard]: ...

    def weights(self) -> Iterator[tuple[Shard, torch.Tensor]]: ...


class WeightSlots:
    """The slots of one rank's published weights.

    Calls come from the computing thread, in the same order on every rank.

    When the ranks' parallelism changes, versions stay readable as they were published, and the next one is
    published in the new one, in slots of the same size (`adopt`).
    name: of the trainer; its ranks' keys are weights/<version>/<name>-<rank>. lease_s: the longest
    that a reader may hold a slot, whatever its lease. hurry: once set, readers are not waited for
    (the trainer is leaving, and its memory with it), and the bus shortly. capacity_bytes: of each slot; 0:
    what the policy's shards take, so that no parallelism may follow in which they take more.
    changes_fraction: the part of those bytes that the elements which changed since the version before may
    take, to be published beside a version; 0: they are not.
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
        capacity_bytes: int = 0,
        changes_fraction: float = 0.0,
    ) -> None:
        self._io = io
        self._registry = registry
        self._bus = bus
        self._group = group
        self._name = name
        self.dtype = dtype
        self._lease_s = lease_s
        self._hurry = hurry or threading.Event()
        self._store = store
        self._pinned = PinnedMemory(group.device)
        self._pinned.pin(store.arena.memory)
        self.adopt(policy)
        self._capacity_bytes = capacity_bytes or held_bytes(self._classes)
        changes_bytes = _changes_bytes(self._capacity_bytes, changes_fraction)
        self._changes = ChangesPublisher(store, changes_bytes) if changes_bytes else None
        # Versions in the slots, oldest first.
        self._held: list[int] = []
        # The version withheld last, on every rank; on rank 0, the wait for its readers.
        self._withheld = 0
        self._retiring: concurrent.futures.Future[None] | None = None
        # Makes the version that was copied last known; the same on every rank, whether there is one.
        self._announcing: concurrent.futures.Future[None] | None = None
        shards = policy.model_shards
        self._size_bytes = sum(int(np.prod(shard.shape)) * numpy_dtype(dtype).itemsize for shard in shards)

    def adopt(self, policy: Weights) -> None:
        """Publishes this policy from now on: the same model, in whatever parallelism."""
        self._policy, self._classes = policy, published_classes(policy.model_shards, self.dtype)

    def close(self) -> None:
        """Forgets all versions, and gives their arena back, after the last one was made known."""
        if self._announcing is not None:
            try:
                self._announced(CALL_S)
            except EarlError as error:
                log.warning("the last version may not be known: %s", error)
        self._pinned.unpin(self._store.arena.memory)
        self._io.run(self._store.close(), CALL_S)
        self._held.clear()

    def key(self, version: int, rank: int) -> str:
        return f"weights/{version}/{self._name}-{rank}"

    def retire_early(self) -> None:
        """Starts freeing the slot that the next version needs, while the step that makes it computes.

        A collective: no rank may renew its descriptor once readers are waited for. Raises as `settle`.
        """
        self.settle()
        if len(self._held) < SLOTS or self._withheld == self._held[0]:
            return
        self._withheld = self._held[0]
        mine = self._with_changes(self.key(self._withheld, self._group.rank))
        self._together(lambda: self._call(self._store.withhold(mine)))
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
        _copy(self._policy, arrays, self.dtype)
        self._held.append(version)
        self._announcing = self._io.submit(self._announce(version, key, self._classes, arrays))

    def settle(self) -> None:
        """Returns once the version that was copied last can be read and was announced. A collective.

        Raises BusUnavailable, DeadlineExceeded on every rank if one could not publish it.
        """
        if self._announcing is not None:
            self._together(lambda: self._announced(ANNOUNCE_S + 2 * self._io.outage_s))

    def check(self) -> None:
        """Raises why the version that was copied last cannot be read, if that is known on this rank. No
        collective."""
        if self._announcing is not None and self._announcing.done():
            self._announcing.result()

    def _announced(self, timeout_s: float) -> None:
        assert self._announcing is not None
        announcing, self._announcing = self._announcing, None
        self._io.wait(announcing, "publishing a version", timeout_s, self._hurry)

    async def _announce(
        self, version: int, key: str, layout: Sequence[Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        changes = await self._changes.code(key, version, layout, arrays) if self._changes else []
        # A rank of this life may have had another number in the one before, and another owner's name.
        descriptor, *_ = await self._store.publish([key, *changes], replace=True)
        if self._changes is not None and arrays:
            self._changes.published(descriptor, layout, arrays)
        if not self._group.leads:
            return
        keys = [self.key(version, rank) for rank in range(self._group.size)]
        poll_s = POLL_S
        try:
            async with asyncio.timeout(CALL_S + self._io.outage_s):
                while self._group.size > 1 and await self._registry.renew(keys):
                    await asyncio.sleep(poll_s)
                    poll_s = min(2 * poll_s, LONGEST_POLL_S)
        except TimeoutError:
            raise BusUnavailable("another rank could not publish its weights", "see its log") from None
        await self._bus.publish(weights_published(version, keys, self._size_bytes))

    def _with_changes(self, key: str) -> list[str]:
        return [key] if self._changes is None else [key, changes_key(key)]

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._io.call(work, CALL_S, self._hurry)

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

    def _retire_oldest(self) -> list[str]:
        """The key of the version, if any, whose slot the next one takes; nobody reads it now."""
        if len(self._held) < SLOTS:
            return []
        self.retire_early()
        self._together(self._retired)
        return self._with_changes(self.key(self._held.pop(0), self._group.rank))

    def _retired(self) -> None:
        if self._retiring is not None:
            retiring, self._retiring = self._retiring, None
            within_s = self._lease_s + CALL_S + self._io.outage_s
            self._io.wait(retiring, "retiring a version", within_s, self._hurry)

    async def _reserve(self, key: str, version: int, old: Sequence[str]) -> dict[str, np.ndarray]:
        for withheld in old:
            self._store.free(withheld)
        if self._group.size > 1:
            # One of this rank's earlier life would be taken for the one that is to come.
            await self._registry.remove(self._with_changes(key))
        # Every slot is of one size: else a larger one would not fit where a smaller one was.
        return self._store.reserve_classes(key, self._classes, version, self._capacity_bytes)

    async def _retire(self, version: int) -> None:
        """Waits for those that are reading a withheld version."""
        # Once more: another rank's renewal may have been in progress while it withheld.
        keys = [self.key(version, rank) for rank in range(self._group.size)]
        await self._registry.remove(some for key in keys for some in self._with_changes(key))
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
