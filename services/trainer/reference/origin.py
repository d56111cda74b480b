"""The frozen policy of a role, where it comes from, and how it is kept.

    teacher, reward model:  <run>/teacher, <run>/reward_model
    a served teacher:       another server; <run>/teacher has its record
    reference, no warm-up:  <run>/model
    reference, warm-up:     the version it ended with ─ data plane ─► each rank's slices
        and, whole, by rank 0                         └─ data plane ─► <run>/reference/step-<version>

Promise: the directory appears whole, and before anything was computed with it; a stage that starts
again, or a run that is resumed, fills its slices from it with the same values.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from earl.config.run import RunConfig
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.layout.box import Box
from earl.dispatch.read.reader import Dispatcher, Read
from earl.errors import CheckpointError
from earl.models.spec import ModelSpec
from earl.models.weights import save_checkpoint
from earl.parallelism import REFERENCE, TEACHER
from services.trainer.ranks.io_thread import IoThread
from services.trainer.reference.policy import ReferencePolicy

# Bytes that are read at once: a receive buffer of this size exists in addition to the model.
PART_BYTES = 256 << 20
READ_SLACK_S = 10.0


@dataclass(frozen=True, slots=True)
class Origin:
    """The frozen model of a role: the policy that reinforcement learning starts from, or one that was given.

    version: its number, 0 if it is no version of the run. directory: where it is, or will be, on disk.
    given: it is there when the run begins. model: the directory with its sizes.
    """

    version: int
    directory: Path
    given: bool
    model: Path

    @classmethod
    def of(cls, config: RunConfig, run_dir: Path, role: str = REFERENCE) -> Origin:
        model = run_dir / "model"
        if role == TEACHER and config.teacher.url:
            # Its sizes are not known here; its tokens are the run's.
            return cls(0, run_dir / role, True, model)
        if role != REFERENCE:
            return cls(0, run_dir / role, True, run_dir / role)
        version = config.warmup.batches + 1
        if not config.warmup.batches:
            return cls(version, model, True, model)
        return cls(version, run_dir / "reference" / f"step-{version}", False, model)

    @property
    def kept(self) -> bool:
        return self.directory.is_dir()

    def void(self, published: int) -> bool:
        """Returns whether a publication shows that warm-up begins again: its end will be another policy."""
        return not self.given and 0 < published < self.version

    def forget(self) -> None:
        """Removes what is on disk; the model that was given stays."""
        if not self.given:
            shutil.rmtree(self.directory, ignore_errors=True)

    def refuse_missed(self, published: int) -> None:
        """Raises CheckpointError once the version can no longer come."""
        if not self.kept and published > self.version:
            raise CheckpointError(
                f"version {published} is published, and version {self.version}, which the KL is measured "
                f"against, was never kept in {self.directory}",
                "start the run again, or set trainer.kl_coefficient and trainer.protected_kl to 0",
            )


def parts(sizes: Mapping[str, int], limit_bytes: int = PART_BYTES) -> Iterator[list[str]]:
    """Names in order, in parts whose sizes add up to limit_bytes at most, one name at least."""
    part: list[str] = []
    left_bytes = limit_bytes
    for name, size in sizes.items():
        if part and size > left_bytes:
            yield part
            part, left_bytes = [], limit_bytes
        part.append(name)
        left_bytes -= size
    if part:
        yield part


class PublishedVersion:
    """A published version, read box by box. Methods are called from the computing thread.

    dtype: that it was published in. deadline_s: of each part of PART_BYTES.
    """

    def __init__(
        self, io: IoThread, dispatcher: Dispatcher, keys: Sequence[str], dtype: str, deadline_s: float
    ) -> None:
        self._io = io
        self._dispatcher = dispatcher
        self._keys = tuple(keys)
        self._dtype = dtype
        self._deadline_s = deadline_s

    def read(self, boxes: Mapping[str, Box]) -> Iterator[tuple[str, torch.Tensor]]:
        """Reads boxes by tensor name, in their order, on the CPU. Raises as Dispatcher.read."""
        carrier = numpy_dtype(self._dtype)
        for names in parts({name: box.size * carrier.itemsize for name, box in boxes.items()}):
            arrays = {name: np.empty(boxes[name].shape, carrier) for name in names}
            reads = [Read(self._keys, name, boxes[name], array) for name, array in arrays.items()]
            work = self._dispatcher.read(reads, self._deadline_s)
            self._io.run(work, self._deadline_s + READ_SLACK_S)
            for name, array in arrays.items():
                tensor = torch.from_numpy(array)
                yield name, tensor.view(torch.bfloat16) if self._dtype == "bfloat16" else tensor

    def fill(self, policy: ReferencePolicy) -> None:
        """Reads this rank's slices into a policy."""
        held = policy.boxes()
        with torch.no_grad():
            for name, tensor in self.read({name: box for name, (_, box) in held.items()}):
                held[name][0].copy_(tensor)

    def keep(self, origin: Origin, spec: ModelSpec) -> None:
        """Writes all of it to the origin's directory, which appears whole. On one rank."""
        origin.forget()
        whole = {name: Box.whole(shape) for name, shape in spec.shapes().items()}
        save_checkpoint(origin.directory, origin.model, self.read(whole))
