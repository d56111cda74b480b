"""Published weights over a real Valkey and real arenas: what readers get, and how slots are reused."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from earl.bus import Bus, EmbeddedValkey
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.changes import VersionChanges, published_regions, read_changes
from earl.dispatch.read.reader import Dispatcher, Read
from earl.dispatch.registry.registry import Registry
from earl.errors import BusUnavailable, DeadlineExceeded, VersionGone
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.publish.weight_slots import WeightSlots, arena_bytes, slot_bytes
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.process_group import Group
from tests.support.policy import configuration, model_directory, stepper_for

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
CALL_S = 20.0
CHANGES = 0.25


@dataclass
class Plane:
    """A trainer's slots and a reader, on one side thread."""

    side: IoThread
    valkey: EmbeddedValkey
    bus: Bus
    registry: Registry
    policy: ShardedPolicy
    slots: WeightSlots
    dispatcher: Dispatcher

    def read(self, version: int) -> dict[str, np.ndarray]:
        """Every tensor of a version. Raises VersionGone."""
        keys = (self.slots.key(version, 0),)
        dtype = np.float32 if self.slots.dtype == "float32" else np.uint16
        arrays = {s.name: np.zeros(s.shape, dtype) for s in self.policy.shards}
        reads = [Read(keys, name, None, array) for name, array in arrays.items()]
        self.side.run(self.dispatcher.read(reads, CALL_S), CALL_S)
        return arrays

    def publish(self, version: int) -> None:
        """Publishes a version, and returns once it can be read."""
        self.slots.publish(version)
        self.slots.settle()

    def lease(self, version: int, seconds: float) -> None:
        async def take() -> None:
            now, _ = await self.bus.redis.time()
            await self.bus.redis.hset(self.bus.key("weights", version, "readers"), "r", str(now + seconds))

        self.side.run(take(), CALL_S)

    def acknowledge(self, version: int) -> None:
        async def give() -> None:
            await self.bus.redis.hdel(self.bus.key("weights", version, "readers"), "r")

        self.side.run(give(), CALL_S)

    @torch.no_grad()
    def change(self) -> None:
        for shard in self.policy.shards:
            shard.local.add_(1.0)

    @torch.no_grad()
    def change_few(self) -> None:
        """Changes an element in a hundred."""
        for shard in self.policy.shards:
            shard.local.view(-1)[::100].add_(1.0)

    def changes(self, version: int, held: dict[str, np.ndarray]) -> VersionChanges:
        """Reads what turns these arrays, of the version before, into this one. Raises VersionGone."""
        keys = [[self.slots.key(number, 0)] for number in (version - 1, version)]
        slices = [(name, None, array) for name, array in held.items()]

        async def read() -> VersionChanges:
            regions = await published_regions(self.registry, keys[0])
            return await read_changes(self.registry, self.dispatcher, keys[1], regions, slices, CALL_S)

        return self.side.run(read(), CALL_S)


@pytest.fixture(params=["float32", "bfloat16"])
def plane(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Plane]:
    torch.set_num_threads(1)
    dtype: str = request.param
    side, valkey, group = IoThread(), EmbeddedValkey(), Group("cpu")
    side.run(valkey.start(tmp_path / "bus"), CALL_S)
    config = DataPlaneConfig(arena_dir=str(tmp_path))
    policy = stepper_for(group, model_directory(tmp_path), configuration()).policy
    bus = side.run(Bus.connect(valkey.url, "t", outage_s=1.0), CALL_S)
    registry = Registry(bus.redis, bus.prefix, 60.0)
    size_bytes = arena_bytes(slot_bytes(policy.shards, dtype), CHANGES)
    opening = TensorStore.open(registry, config, tmp_path, "trainer-0", incarnation=1, size_bytes=size_bytes)
    store = side.run(opening, CALL_S)
    dispatcher = side.run(Dispatcher.create(registry, config), CALL_S)
    slots = WeightSlots(
        side, store, registry, bus, group, policy,
        name="trainer", dtype=dtype, lease_s=5.0, changes_fraction=CHANGES,
    )  # fmt: skip
    yield Plane(side, valkey, bus, registry, policy, slots, dispatcher)
    side.run(dispatcher.close(), CALL_S)
    side.run(store.close(), CALL_S)
    side.run(bus.close(), CALL_S)
    side.run(valkey.stop(), CALL_S)
    side.close()
    group.close()


def _equal(found: dict[str, np.ndarray], policy: ShardedPolicy, offset: float = 0.0) -> None:
    for shard in policy.shards:
        array = found[shard.name]
        expected = shard.local.view(shard.shape) + offset
        if array.dtype == np.uint16:
            tensor, expected = torch.from_numpy(array).view(torch.bfloat16), expected.to(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array)
        torch.testing.assert_close(tensor, expected, atol=0.02, rtol=0.01, msg=shard.name)


def test_what_is_read_is_what_was_published_whatever_is_trained_since(plane: Plane) -> None:
    plane.publish(1)
    plane.change()
    plane.publish(2)
    plane.change()
    _equal(plane.read(1), plane.policy, -2.0)
    _equal(plane.read(2), plane.policy, -1.0)


def test_what_changed_leads_from_each_version_to_the_next(plane: Plane) -> None:
    """Through more versions than there are slots."""
    plane.publish(1)
    held = plane.read(1)
    for version in range(2, 6):
        plane.change_few()
        plane.publish(version)
        changes = plane.changes(version, held)
        changes.apply()
        whole = plane.read(version)
        assert all(held[name].tobytes() == array.tobytes() for name, array in whole.items())
        assert 0 < changes.size_bytes < sum(array.nbytes for array in whole.values()) / 8


def test_too_many_changes_are_not_published_and_none_of_a_version_that_is_gone(plane: Plane) -> None:
    plane.publish(1)
    held = plane.read(1)
    plane.change()
    plane.publish(2)
    with pytest.raises(VersionGone, match="weights/2/trainer-0/changes"):
        plane.changes(2, held)
    for version in (3, 4, 5):
        plane.change_few()
        plane.publish(version)
    gone = [key for key in plane.side.run(plane.registry.keys("weights/"), CALL_S) if "/3/" in key]
    assert not gone


def test_the_event_names_every_ranks_key(plane: Plane) -> None:
    plane.publish(1)

    async def first():
        async for _, event in plane.bus.follow("0-0"):
            return event.weights_published

    said = plane.side.run(first(), CALL_S)
    assert said is not None
    assert (said.version, list(said.descriptor_keys)) == (1, ["weights/1/trainer-0"])
    itemsize = 4 if plane.slots.dtype == "float32" else 2
    assert said.size_bytes == itemsize * plane.policy.spec.parameters


def test_many_versions_fit_into_two_slots_and_old_ones_are_gone(plane: Plane) -> None:
    for version in range(1, 9):
        plane.slots.retire_early()
        plane.publish(version)
        plane.change()
    _equal(plane.read(7), plane.policy, -2.0)
    _equal(plane.read(8), plane.policy, -1.0)
    with pytest.raises(VersionGone):
        plane.read(6)


def test_a_slot_waits_for_its_reader_to_acknowledge(plane: Plane) -> None:
    plane.publish(1)
    plane.publish(2)
    plane.lease(1, 60.0)
    held = plane.read(1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        third = pool.submit(plane.publish, 3)
        # Its descriptor goes first, so that no new reader comes.
        with pytest.raises(VersionGone):
            while True:
                plane.read(1)
        assert not third.done()
        plane.acknowledge(1)
        third.result(CALL_S)
    assert held.keys() == plane.read(3).keys()


def test_a_version_that_retires_takes_no_new_readers(plane: Plane) -> None:
    plane.publish(1)
    plane.slots.retire_early()
    plane.read(1)
    plane.publish(2)
    plane.slots.retire_early()
    with pytest.raises(VersionGone):
        plane.read(1)
    plane.read(2)


def test_a_lease_that_ended_holds_no_slot(plane: Plane) -> None:
    plane.publish(1)
    plane.publish(2)
    plane.lease(1, -1.0)
    plane.publish(3)
    plane.read(3)


def test_training_goes_on_while_a_version_is_made_known(plane: Plane) -> None:
    """Publishing returns while the bus does not answer, and the version is what was copied then."""
    os.kill(plane.valkey.pid, signal.SIGSTOP)
    try:
        plane.slots.publish(1)
        plane.slots.check()
        plane.change()
    finally:
        os.kill(plane.valkey.pid, signal.SIGCONT)
    plane.slots.settle()
    _equal(plane.read(1), plane.policy, -1.0)


def test_a_version_that_could_not_be_made_known_is_reported(plane: Plane) -> None:
    plane.side.run(plane.valkey.stop(), CALL_S)
    plane.slots.publish(1)
    with pytest.raises(BusUnavailable):
        while True:
            plane.slots.check()
    with pytest.raises(BusUnavailable):
        plane.slots.settle()


def test_side_work_is_bounded_and_its_failures_surface(plane: Plane) -> None:

    with pytest.raises(DeadlineExceeded, match=r"within 0\.01 s"):
        plane.side.run(asyncio.sleep(60.0), 0.01)

    async def broken() -> None:
        raise VersionGone("version 3 is gone", "take the newer one")

    plane.side.spawn(broken())
    with pytest.raises(VersionGone):
        while True:
            plane.side.check()
