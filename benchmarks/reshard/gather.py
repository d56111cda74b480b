"""What is done elsewhere: full tensors gathered on one rank, broadcast to the readers, then cut. Over gloo.

    trainer ranks ─ gather a bucket ─► rank 0 ─ join tensors ─ broadcast ─► readers ─ copy their slices

Buckets make few large messages of many tensors. Buffers are made and touched once; what trainer ranks send
lies packed already; replicas are sent once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.reshard.cases import CARRIER, Case, first_held, owned
from earl.dispatch.layout.box import Box
from earl.models.spec import ModelSpec

BUCKET_BYTES = 64 << 20


class Buckets:
    """How tensors are put into buckets, and where their parts lie. Elements, not bytes."""

    def __init__(self, spec: ModelSpec, case: Case) -> None:
        self.shapes = spec.shapes()
        self.case = case
        self.held = first_held(spec, case)
        self.names: list[list[str]] = [[]]
        room = BUCKET_BYTES // CARRIER.itemsize
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            if self.names[-1] and room < size:
                self.names.append([])
                room = BUCKET_BYTES // CARRIER.itemsize
            self.names[-1].append(name)
            room -= size
        self.sizes = [sum(int(np.prod(self.shapes[name])) for name in names) for names in self.names]
        # What every rank sends of each bucket: as much as the one that has most.
        self.sent = [
            max(
                sum(box.size for name in names for at, box in self.held[name] if at == rank)
                for rank in range(case.trainers)
            )
            for names in self.names
        ]

    @property
    def moved_bytes(self) -> int:
        """To rank 0, and from it to the readers."""
        to_first = (self.case.trainers - 1) * sum(self.sent)
        return CARRIER.itemsize * (to_first + self.case.readers * sum(self.sizes))

    def parts(self, bucket: int, rank: int) -> Iterator[tuple[str, Box, slice]]:
        """(tensor, box, where it lies) of what a trainer rank sends."""
        at = 0
        for name in self.names[bucket]:
            for owner, box in self.held[name]:
                if owner == rank:
                    yield name, box, slice(at, at + box.size)
                    at += box.size

    def tensors(self, bucket: int, full: np.ndarray) -> dict[str, np.ndarray]:
        """Views of a bucket's whole tensors."""
        found, at = {}, 0
        for name in self.names[bucket]:
            size = int(np.prod(self.shapes[name]))
            found[name] = full[at : at + size].reshape(self.shapes[name])
            at += size
        return found


class GatherBroadcast:
    """One process's side: trainer ranks come first in the world, then readers. All make it at once."""

    def __init__(self, spec: ModelSpec, case: Case, rank: int, store: str) -> None:
        world = case.trainers + case.readers
        file_store = dist.FileStore(store, world)  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group("gloo", store=file_store, rank=rank, world_size=world)
        self.rank, self.case = rank, case
        self.buckets = Buckets(spec, case)
        self._trainers: Any = dist.new_group(list(range(case.trainers)))
        self._readers: Any = dist.new_group([0, *range(case.trainers, world)])
        if rank in (0, *range(case.trainers, world)):
            self._full = np.zeros(max(self.buckets.sizes), CARRIER)
        self._mine: list[np.ndarray] = []
        self._gathered: list[list[np.ndarray]] = []

    def pack(self, arrays: dict[str, np.ndarray]) -> None:
        """A trainer rank's shards, as they are sent."""
        for bucket, sent in enumerate(self.buckets.sent):
            flat = np.zeros(sent, CARRIER)
            for name, _, at in self.buckets.parts(bucket, self.rank):
                flat[at] = arrays[name].reshape(-1)
            self._mine.append(flat)
            several = self.case.trainers if self.rank == 0 else 0
            self._gathered.append([np.zeros(sent, CARRIER) for _ in range(several)])

    def send(self) -> None:
        """A trainer rank's part of a round."""
        for bucket, mine in enumerate(self._mine):
            gathered = self._gathered[bucket]
            into = [_bytes(one) for one in gathered] if self.rank == 0 else None
            dist.gather(_bytes(mine), into, dst=0, group=self._trainers)
            if self.rank == 0:
                tensors = self.buckets.tensors(bucket, self._full)
                for rank, flat in enumerate(gathered):
                    for name, box, at in self.buckets.parts(bucket, rank):
                        np.copyto(tensors[name][box.slices()], flat[at].reshape(box.shape))
                self._broadcast(bucket)

    def receive(self, targets: dict[str, np.ndarray], spec: ModelSpec) -> None:
        """A reader's part of a round."""
        wanted: dict[str, list[tuple[np.ndarray, Box]]] = {}
        for name, one in owned(spec, self.case, self.rank - self.case.trainers).items():
            for part in one.parts:
                into = targets[name][part.target.slices()]
                wanted.setdefault(part.source, []).append((into, part.box))
        for bucket in range(len(self.buckets.sizes)):
            self._broadcast(bucket)
            for name, whole in self.buckets.tensors(bucket, self._full).items():
                for into, box in wanted.get(name, ()):
                    np.copyto(into, whole[box.slices()])

    def _broadcast(self, bucket: int) -> None:
        dist.broadcast(_bytes(self._full[: self.buckets.sizes[bucket]]), src=0, group=self._readers)


def _bytes(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.view(np.uint8))
