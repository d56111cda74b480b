"""Frozen versions over a real Valkey and a real arena: what readers get, and what is left after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from earl.bus import Bus, EmbeddedValkey
from earl.config.data_plane import DataPlaneConfig
from earl.config.frozen_schedule import FrozenSchedule, KeptVersions, PinnedSchedule
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher, Read
from earl.dispatch.registry.registry import Registry, frozen_key
from earl.errors import CheckpointError, VersionGone
from services.trainer.checkpoint.frozen_weights import OPPONENTS, FrozenWeights, frozen_bytes
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.process_group import Group
from tests.support.policy import ADAPTED_CONFIG, configuration, model_directory, stepper_for
from tests.support.policy import alone as alone

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
CALL_S = 20.0
# Of versions 3 to 10, 3, 5, 7 and 9 are frozen.
SCHEDULE = FrozenSchedule(first=3, every=2, staleness=0)
# The arena holds two versions.
LARGEST = PinnedSchedule(first=3, staleness=1)


@dataclass
class Plane:
    """A trainer's policy in a run's directory, its arena for frozen versions, and a reader."""

    side: IoThread
    group: Group
    directory: Path
    policy: ShardedPolicy
    store: TensorStore
    dispatcher: Dispatcher
    dtype: str

    def trainer(self, schedule: FrozenSchedule | KeptVersions = SCHEDULE) -> FrozenWeights:
        """A trainer that has just started."""
        self.side.run(self.store.remove(self.store.keys), CALL_S)
        directory = self.directory / OPPONENTS
        return FrozenWeights(schedule, directory, self.dtype, self.group, self.side, self.store)

    def read(self, version: int) -> dict[str, np.ndarray]:
        """Every tensor of a frozen version. Raises VersionGone."""
        carrier = np.float32 if self.dtype == "float32" else np.uint16
        arrays = {name: np.zeros(shape, carrier) for name, shape in self.policy.spec.shapes().items()}
        reads = [Read((frozen_key(version),), name, None, array) for name, array in arrays.items()]
        self.side.run(self.dispatcher.read(reads, CALL_S), CALL_S)
        return arrays

    def now(self, policy: ShardedPolicy | None = None) -> dict[str, np.ndarray]:
        """Every tensor of the policy, or of another one, as it would be published."""
        arrays = {}
        for name, tensor in (policy or self.policy).gathered():
            cast = tensor.to(getattr(torch, self.dtype))
            arrays[name] = (cast.view(torch.uint16) if self.dtype == "bfloat16" else cast).numpy().copy()
        return arrays

    @torch.no_grad()
    def change(self) -> None:
        for shard in self.policy.shards:
            shard.local.add_(1.0)

    @property
    def kept(self) -> set[str]:
        return {path.name for path in (self.directory / "opponents").iterdir()}


@pytest.fixture(params=["float32", "bfloat16"])
def plane(request: pytest.FixtureRequest, tmp_path: Path, alone: Group) -> Iterator[Plane]:
    side, valkey = IoThread(), EmbeddedValkey()
    side.run(valkey.start(tmp_path / "bus"), CALL_S)
    config = DataPlaneConfig(arena_dir=str(tmp_path))
    policy = stepper_for(alone, model_directory(tmp_path), configuration()).policy
    bus = side.run(Bus.connect(valkey.url, "t"), CALL_S)
    registry = Registry(bus.redis, bus.prefix, 60.0)
    size_bytes = frozen_bytes(policy.spec, LARGEST, request.param)
    opening = TensorStore.open(registry, config, tmp_path, "trainer-0", incarnation=1, size_bytes=size_bytes)
    store = side.run(opening, CALL_S)
    dispatcher = side.run(Dispatcher.create(registry, config), CALL_S)
    yield Plane(side, alone, tmp_path, policy, store, dispatcher, request.param)
    side.run(dispatcher.close(), CALL_S)
    side.run(store.close(), CALL_S)
    side.run(bus.close(), CALL_S)
    side.run(valkey.stop(), CALL_S)
    side.close()


def assert_equal(arrays: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_a_frozen_version_stays_as_it_was_until_the_next_one(plane: Plane) -> None:
    trainer = plane.trainer()
    third = plane.now()
    for version in (3, 4):
        trainer.publish(version, plane.policy)
        assert_equal(plane.read(3), third)
        plane.change()
    fifth = plane.now()
    trainer.publish(5, plane.policy)
    assert_equal(plane.read(5), fifth)
    with pytest.raises(VersionGone):
        plane.read(3)


def test_the_last_versions_that_tickets_are_pinned_to_stay_as_they_were(plane: Plane) -> None:
    schedule = KeptVersions([LARGEST])
    assert schedule.most_needed == 2
    trainer, made = plane.trainer(schedule), {}
    (plane.directory / "checkpoints" / "step-5").mkdir(parents=True)
    for version in range(2, 8):
        made[version] = plane.now()
        trainer.publish(version, plane.policy)
        plane.change()
        for kept in schedule.needed(version):
            assert_equal(plane.read(kept), made[kept])
    with pytest.raises(VersionGone):
        plane.read(5)
    assert plane.kept == {"step-4", "step-5", "step-6", "step-7"}
    # The trainer goes back to the checkpoint: its tickets are pinned to the version before, as they were.
    plane.trainer(schedule).publish(5, plane.policy)
    assert_equal(plane.read(4), made[4])
    assert plane.kept == {"step-4", "step-5"}


def test_nothing_is_frozen_before_training_begins(plane: Plane) -> None:
    plane.trainer().publish(2, plane.policy)
    assert not (plane.directory / "opponents").exists()
    with pytest.raises(VersionGone):
        plane.read(2)


def test_a_trainer_that_starts_again_publishes_the_same_values(plane: Plane) -> None:
    plane.trainer().publish(3, plane.policy)
    third = plane.now()
    plane.change()
    plane.trainer().publish(4, plane.policy)
    assert_equal(plane.read(3), third)


def test_a_version_that_is_made_again_takes_the_place_of_the_first(plane: Plane) -> None:
    plane.trainer().publish(5, plane.policy)
    plane.change()
    again = plane.now()
    plane.trainer().publish(5, plane.policy)
    assert_equal(plane.read(5), again)
    # Going back further removes what is of no history any more.
    plane.trainer().publish(3, plane.policy)
    assert plane.kept == {"step-3"}


def test_what_a_checkpoint_needs_stays(plane: Plane) -> None:
    trainer = plane.trainer()
    (plane.directory / "checkpoints" / "step-4").mkdir(parents=True)
    for version in range(3, 9):
        trainer.publish(version, plane.policy)
    assert plane.kept == {"step-3", "step-7"}
    (plane.directory / "checkpoints" / "step-4").rmdir()
    trainer.publish(9, plane.policy)
    assert plane.kept == {"step-9"}


def test_versions_that_stale_tickets_name_are_readable_together(plane: Plane) -> None:
    schedule = FrozenSchedule(first=3, every=2, staleness=1)
    size_bytes = frozen_bytes(plane.policy.spec, schedule, plane.dtype)
    assert size_bytes == 2 * frozen_bytes(plane.policy.spec, SCHEDULE, plane.dtype)


def test_a_version_that_was_no_opponent_when_it_was_trained_comes_from_its_checkpoint(plane: Plane) -> None:
    first = plane.now()  # version 1 is the model that the run began with
    plane.change()
    plane.trainer(FrozenSchedule(first=1, every=4, staleness=0)).publish(3, plane.policy)
    assert_equal(plane.read(1), first)
    assert plane.kept == {"step-1"}
    with pytest.raises(
        CheckpointError, match=r"tickets of version 4 name version 3, which is neither in"
    ) as lost:
        plane.trainer().publish(4, plane.policy)
    assert 'set opponent = "current"' in lost.value.remedy


def test_adapters_are_frozen_with_the_model_that_they_change(plane: Plane) -> None:
    config = configuration(**ADAPTED_CONFIG)
    policy = stepper_for(plane.group, plane.directory / "model", config).policy
    with torch.no_grad():
        for shard in policy.shards:
            shard.local.add_(0.5)
    plane.trainer().publish(3, policy)
    frozen, model = plane.read(3), plane.now()
    assert_equal(frozen, plane.now(policy))
    assert any((frozen[name] != model[name]).any() for name in model)


def test_a_disk_that_takes_nothing_is_an_error_that_says_so(plane: Plane) -> None:
    (plane.directory / "opponents").write_text("")
    with pytest.raises(CheckpointError, match="a frozen version cannot be kept in") as refused:
        plane.trainer().publish(3, plane.policy)
    assert refused.value.remedy == "free the disk, then resume"
