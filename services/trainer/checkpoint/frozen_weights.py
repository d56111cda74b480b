"""Versions that tickets name and that are not the newest: kept on disk, and readable by rollout workers.

    publish(v), before v itself:
        v will be needed? ─► all ranks' shards ─► <run>/opponents/step-v, whole, by rank 0
        what tickets may name ─► rank 0's arena ─► descriptors

These are the frozen versions that the policy trains against, and the last staleness + 1 versions of a
deterministic run, whose tickets are pinned to one of them (RunConfig.kept). Without opponents the directory
is versions/.

Promise: whoever can read a version can read every kept version that its tickets name. A trainer that starts
again publishes the same values, from disk. A directory appears whole, and stays as long as a checkpoint needs
it.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError

from earl.config.frozen_schedule import FrozenSchedule, KeptVersions, PinnedSchedule
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.memory.allocator import occupied, rounded
from earl.dispatch.publish.tensor_store import TensorSpec, TensorStore
from earl.dispatch.registry.registry import frozen_key
from earl.errors import CheckpointError, EarlError
from earl.models.spec import ModelSpec, load_spec
from earl.models.weights import save_checkpoint
from services.trainer.checkpoint.reader import model_tensors, saved_tensors
from services.trainer.checkpoint.retention import checkpoints, version_of
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.process_group import Group

T = TypeVar("T")

CALL_S = 30.0
# Directories of kept versions in the run's, with opponents and without.
OPPONENTS, VERSIONS = "opponents", "versions"


def frozen_bytes(
    spec: ModelSpec, schedule: FrozenSchedule | PinnedSchedule | KeptVersions, dtype: str
) -> int:
    """Bytes of an arena that holds as many versions as may be needed at once."""
    tensors = [TensorSpec(dtype, shape) for shape in spec.shapes().values()]
    item_bytes = numpy_dtype(dtype).itemsize
    return schedule.most_needed * occupied(sum(rounded(each.held.size * item_bytes) for each in tensors))


class FrozenWeights:
    """The frozen versions of one trainer group.

    directory: of these versions, in that of the run, with its model and checkpoints. dtype: that versions are
    published in. store: of rank 0; None on others.
    """

    def __init__(
        self,
        schedule: FrozenSchedule | PinnedSchedule | KeptVersions,
        directory: Path,
        dtype: str,
        group: Group,
        io: IoThread,
        store: TensorStore | None,
    ) -> None:
        self._schedule = schedule
        run_dir = directory.parent
        self._model, self._checkpoints = run_dir / "model", run_dir / "checkpoints"
        self._directory = directory
        self._dtype = dtype
        self._group, self._io, self._store = group, io, store
        self._published: set[int] = set()

    def publish(self, version: int, policy: ShardedPolicy) -> None:
        """Makes readable what tickets may name while `version`, the policy's, is trained. A collective.

        Raises CheckpointError, BusUnavailable or DeadlineExceeded, on every rank.
        """
        needed = self._schedule.needed(version)
        if version in needed:
            self._write(version, policy)
        self._on_rank_0(lambda store: self._serve(version, needed, store))

    def _write(self, version: int, policy: ShardedPolicy) -> None:
        """Writes the policy as it is now; what is there may be of a history that was rolled back."""
        dtype = getattr(torch, self._dtype)
        tensors = ((name, tensor.to(dtype)) for name, tensor in policy.gathered())

        def write(_: TensorStore) -> None:
            shutil.rmtree(self._path(version), ignore_errors=True)
            try:
                save_checkpoint(self._path(version), self._model, tensors)
            finally:
                deque(tensors, maxlen=0)

        if not self._group.leads:
            # Every rank takes part in gathering each tensor; this one keeps none.
            deque(tensors, maxlen=0)
        self._on_rank_0(write)

    def _on_rank_0(self, work: Callable[[TensorStore], None]) -> None:
        """Does `work` on rank 0; raises on every rank if it could not. A collective."""
        failure: EarlError = CheckpointError("rank 0 could not keep a frozen version", "see its log")
        done = True
        if self._store is not None:
            try:
                work(self._store)
            except (OSError, SafetensorError) as error:
                done = False
                failure = CheckpointError(
                    f"a frozen version cannot be kept in {self._directory}: {error}",
                    "free the disk, then resume",
                )
            except EarlError as error:
                done, failure = False, error
        if not self._group.agree(done):
            raise failure

    def _serve(self, version: int, needed: list[int], store: TensorStore) -> None:
        self._call(store.remove([frozen_key(each) for each in self._published.difference(needed)]))
        self._published.intersection_update(needed)
        for frozen in needed:
            if not self._path(frozen).is_dir():
                self._write_saved(frozen, version)
            if frozen not in self._published:
                self._fill(store, frozen)
                self._published.add(frozen)
        self._prune(version)

    def _fill(self, store: TensorStore, frozen: int) -> None:
        """Copies a version from disk into the arena, and makes it known."""
        key, shapes = frozen_key(frozen), load_spec(self._model).shapes()
        specs = {name: TensorSpec(self._dtype, shape) for name, shape in shapes.items()}

        async def reserve() -> dict[str, np.ndarray]:
            return store.reserve(key, specs, frozen)

        arrays = self._call(reserve())
        for name, tensor in model_tensors(self._path(frozen), getattr(torch, self._dtype)):
            target = torch.from_numpy(arrays[name])
            (target.view(torch.bfloat16) if self._dtype == "bfloat16" else target).copy_(tensor)
        # An earlier rank 0 may have had another owner's name.
        self._call(store.publish(key, replace=True))

    def _write_saved(self, frozen: int, version: int) -> None:
        """Writes a version that was not to be kept when it was trained, from its checkpoint."""
        try:
            tensors = saved_tensors(self._checkpoints, frozen, self._model, getattr(torch, self._dtype))
            save_checkpoint(self._path(frozen), self._model, tensors)
        except CheckpointError as error:
            raise CheckpointError(
                f"tickets of version {version} name version {frozen}, which is neither in {self._directory} "
                f"nor among the checkpoints: {error.message}",
                'set opponent = "current" and deterministic = false, or restore frozen_every and '
                "scheduler.staleness as they were when the checkpoint was written",
            ) from error

    def _prune(self, version: int) -> None:
        """Removes what no checkpoint needs, and what is newer than the version that is trained."""
        saved = [version_of(path) for path in checkpoints(self._checkpoints)]
        kept = {frozen for each in (version, *saved) for frozen in self._schedule.needed(each)}
        for path in checkpoints(self._directory):
            if version_of(path) > version or version_of(path) not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def _path(self, version: int) -> Path:
        return self._directory / f"step-{version}"

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._io.call(work, CALL_S)
