"""Writes checkpoints while training goes on.

    begin: shards copied in memory ─► training goes on ──────────────► poll, settle: all ranks have written?
               └─► a thread: file, hashed as it is written, fsynced ─┘       ├─ manifest, last, by rank 0
                                                                             └─ renamed: now it is there

One is written at a time. What a checkpoint holds is the state when it began. Until it is renamed it is none:
whatever ends the trainer before leaves the one before as the newest. A rank that cannot write fails all ranks
at their next poll.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from earl.errors import CheckpointError
from earl.obs.memory import available_bytes
from services.trainer.checkpoint.manifest import (
    FILE,
    FileEntry,
    Manifest,
    TensorEntry,
    TrainingProgress,
    fingerprint,
)
from services.trainer.checkpoint.retention import prune
from services.trainer.checkpoint.tensor_file import write_tensors
from services.trainer.model.adapters import AdapterEntry
from services.trainer.ranks.process_group import COLLECTIVE_S, Group
from services.trainer.step.step import Stepper

PARAMETER, FIRST_MOMENT, SECOND_MOMENT = "parameter/", "exp_avg/", "exp_avg_sq/"

# Fraction of the host's free memory that copies of the shards of all ranks may take.
COPY_FRACTION = 0.5
# Other ranks wait in a collective for the slowest.
SETTLE_S = 0.9 * COLLECTIVE_S


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """A checkpoint that is on the disk, and the training that it holds."""

    path: Path
    progress: TrainingProgress


@dataclass(slots=True, eq=False)
class _Writing:
    """A checkpoint that is being written. file, error: what became of this rank's file, once `done`.

    shapes: of all tensors; boxes: per tensor of this rank's file [shape, start, stop].
    """

    target: Path
    progress: TrainingProgress
    config_hash: str
    model: str
    adapter: AdapterEntry | None
    shapes: dict[str, tuple[int, ...]]
    boxes: dict[str, list]
    error: str = ""
    file: tuple[str, int, str] | None = None
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def partial(self) -> Path:
        return self.target.with_name(f".{self.target.name}.partial")

    def write(self, name: str, tensors: dict[str, torch.Tensor]) -> None:
        try:
            self.file = write_tensors(self.partial / name, tensors)
        except Exception as error:  # noqa: BLE001  (every rank is told, and ends)
            self.error = self.error or f"{self.partial / name}: {error}"
        finally:
            tensors.clear()
            self.done.set()

    def report(self) -> bytes:
        return json.dumps({"error": self.error, "tensors": self.boxes, "file": self.file}).encode()

    def manifest(self, parts: list[dict]) -> Manifest:
        tensors: dict[str, TensorEntry] = {}
        for name, shape in self.shapes.items():
            boxes = [(index, part["tensors"].get(name)) for index, part in enumerate(parts)]
            held = tuple((index, tuple(box[1]), tuple(box[2])) for index, box in boxes if box is not None)
            tensors[name] = TensorEntry(shape, held)
        files = tuple(FileEntry(*part["file"]) for part in parts)
        return Manifest(self.progress, self.model, self.config_hash, self.adapter, files, tensors)


class CheckpointWriter:
    """Writes the checkpoints of one rank below `directory`, of which the newest `keep` stay.

    Methods are collectives. free_bytes: memory that the host's processes may still take; where copies do not
    fit, a checkpoint is written while training stands.
    """

    def __init__(
        self, directory: Path, group: Group, keep: int, free_bytes: Callable[[], int] = available_bytes
    ) -> None:
        self._directory, self._group, self._keep = directory, group, keep
        self._free_bytes = free_bytes
        # The same on every rank, whether there is one.
        self._writing: _Writing | None = None

    @property
    def in_flight(self) -> bool:
        """Returns whether a checkpoint began that is not settled. No collective."""
        return self._writing is not None

    def begin(self, stepper: Stepper, progress: TrainingProgress, config_hash: str) -> None:
        """Begins to write checkpoint step-<version>; the state may change once this returns.

        The one before must be settled. Errors surface in `poll` and `settle`.
        """
        assert self._writing is None, "a checkpoint is in flight"
        policy = stepper.policy
        tensors, boxes = _local(stepper)
        writing = _Writing(
            self._directory / f"step-{progress.version}",
            progress,
            config_hash,
            fingerprint(policy.spec),
            policy.adapter,
            {shard.name: shard.shape for shard in policy.shards},
            boxes,
        )
        if self._group.leads:
            try:
                for stale in self._directory.glob(".step-*.partial"):
                    shutil.rmtree(stale, ignore_errors=True)
                writing.partial.mkdir(parents=True)
            except OSError as error:
                writing.error = f"{writing.partial}: {error}"
        size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        # Also the barrier after which the directory is there.
        total_bytes = int(self._group.sum(torch.tensor([size_bytes]))[0])
        copied = self._group.agree(total_bytes <= COPY_FRACTION * self._free_bytes())
        self._writing = writing
        name = f"rank-{self._group.rank:05d}.safetensors"
        if not copied:
            writing.write(name, tensors)
            return
        copies = {key: tensor.detach().to("cpu", copy=True) for key, tensor in tensors.items()}
        threading.Thread(target=writing.write, args=(name, copies), name="checkpoint", daemon=True).start()

    def poll(self, held: Collection[int] = ()) -> WrittenCheckpoint | None:
        """The checkpoint in flight if it was written meanwhile by every rank. held: as in `settle`.

        Raises CheckpointError on every rank if one could not write (disk full); older ones are then intact.
        """
        if self._writing is None or not self._group.agree(self._writing.done.is_set()):
            return None
        return self._finish(held)

    def settle(self, held: Collection[int] = ()) -> WrittenCheckpoint | None:
        """Waits for the checkpoint in flight, if there is one. held: versions that stay (rank 0's count).

        Raises CheckpointError as `poll`, and if it was not written within SETTLE_S.
        """
        if self._writing is None:
            return None
        if not self._writing.done.wait(SETTLE_S):
            self._writing.error = f"{self._writing.partial}: not written within {SETTLE_S:g} s"
        return self._finish(held)

    def _finish(self, held: Collection[int]) -> WrittenCheckpoint:
        writing, self._writing = self._writing, None
        assert writing is not None
        parts = [json.loads(part) for part in self._group.gather(writing.report())]
        errors = [part["error"] for part in parts if part["error"]]
        if not errors and self._group.leads:
            try:
                _rename(writing.partial, writing.target, writing.manifest(parts))
                prune(self._directory, writing.target, self._keep, held)
            except OSError as error:
                errors = [f"{writing.target}: {error}"]
        errors = json.loads(self._group.broadcast(json.dumps(errors).encode()))
        if errors:
            raise CheckpointError(f"no checkpoint was written: {errors[0]}", "free the disk, then resume")
        return WrittenCheckpoint(writing.target, writing.progress)


def state_tensors(stepper: Stepper) -> Iterator[tuple]:
    """(shard, prefix in the file, local float32 tensor) of all that a checkpoint holds."""
    for shard in stepper.policy.shards:
        yield shard, PARAMETER, shard.local
    for shard in stepper.policy.shards:
        if shard.box.size:
            first, second = stepper.optimizer.moments[shard.name]
            yield shard, FIRST_MOMENT, first
            yield shard, SECOND_MOMENT, second


def _local(stepper: Stepper) -> tuple[dict[str, torch.Tensor], dict[str, list]]:
    """Returns this rank's tensors by their name in the file, and per parameter [shape, start, stop]; of what
    several ranks hold alike, the first one's."""
    tensors: dict[str, torch.Tensor] = {}
    boxes: dict[str, list] = {}
    for shard, prefix, local in state_tensors(stepper):
        if shard.counts:
            boxes[shard.name] = [shard.shape, shard.box.start, shard.box.stop]
            tensors[prefix + shard.name] = local.view(shard.box.shape)
    return tensors, boxes


def _rename(partial: Path, target: Path, manifest: Manifest) -> None:
    directory = target.parent
    (partial / FILE).write_bytes(manifest.encode())
    _fsync(partial / FILE)
    _fsync(partial)
    if target.exists():
        # The checkpoint belongs to a history that was rolled back.
        old = directory / f".{target.name}.old"
        shutil.rmtree(old, ignore_errors=True)
        os.rename(target, old)
        os.rename(partial, target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(partial, target)
    _fsync(directory)


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
