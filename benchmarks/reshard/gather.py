"""The usual way, over gloo: full tensors gathered on one rank, broadcast to the readers, then split.

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

from benchmarks.reshard.cases import CARRIER, ReshardCase, first_held, owned
from earl.dispatch.layout.box import Box
from earl.models.spec import ModelSpec

BUCKET_BYTES = 64 << 20


class Buckets:
    """The assignment of tensors to buckets, with the place of each part. Elements, not bytes."""

    def __init__(self, spec: ModelSpec, case: ReshardCase) -> None:
        self.shapes = spec.shapes()
        self.case = case
        self.held = first_held(spec, case)
        self.names: list[list[str]] = [[]]
        left = BUCKET_BYTES // CARRIER.itemsize
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            if self.names[-1] and left < size:
                self.names.append([])
                left = BUCKET_BYTES // CARRIER.itemsize
            self.names[-1].append(name)
            left -= size
        self.sizes = [sum(int(np.prod(self.shapes[name])) for name in names) for names in self.names]
        # What every rank sends of each bucket: as much as the one that has most.
        self.sent = [
            max(
                sum(box.size for name in names for owner, box in self.held[name] if owner == rank)
                for rank in range(case.trainers)
            )
            for names in self.names
        ]

    @property
    def moved_bytes(self) -> int:
        """Bytes of one round: gathered to rank 0, and broadcast from it to the readers."""
        to_first = (self.case.trainers - 1) * sum(self.sent)
        return CARRIER.itemsize * (to_first + self.case.readers * sum(self.sizes))

    def parts(self, bucket: int, rank: int) -> Iterator[tuple[str, Box, slice]]:
        """(tensor, box, elements of the flat message) of what a trainer rank sends of a bucket."""
        offset = 0
        for name in self.names[bucket]:
            for owner, box in self.held[name]:
                if owner == rank:
                    yield name, box, slice(offset, offset + box.size)
                    offset += box.size

    def tensors(self, bucket: int, full: np.ndarray) -> dict[str, np.ndarray]:
        """Views of a bucket's whole tensors."""
        views, offset = {}, 0
        for name in self.names[bucket]:
            size = int(np.prod(self.shapes[name]))
            views[name] = full[offset : offset + size].reshape(self.shapes[name])
            offset += size
        return views


class GatherBroadcast:
    """One process's side of gloo's group: trainer ranks first, then readers. All construct it at once."""

    def __init__(self, spec: ModelSpec, case: ReshardCase, rank: int, store: str) -> None:
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
        """Pack a trainer rank's shards into the messages that it sends."""
        for bucket, sent in enumerate(self.buckets.sent):
            flat = np.zeros(sent, CARRIER)
            for name, _, span in self.buckets.parts(bucket, self.rank):
                flat[span] = arrays[name].reshape(-1)
            self._mine.append(flat)
            several = self.case.trainers if self.rank == 0 else 0
            self._gathered.append([np.zeros(sent, CARRIER) for _ in range(several)])

    def send(self) -> None:
        """Runs a trainer rank's part of a round."""
        for bucket, mine in enumerate(self._mine):
            gathered = self._gathered[bucket]
            into = [_bytes(received) for received in gathered] if self.rank == 0 else None
            dist.gather(_bytes(mine), into, dst=0, group=self._trainers)
            if self.rank == 0:
                tensors = self.buckets.tensors(bucket, self._full)
                for rank, flat in enumerate(gathered):
                    for name, box, span in self.buckets.parts(bucket, rank):
                        np.copyto(tensors[name][box.slices()], flat[span].reshape(box.shape))
                self._broadcast(bucket)

    def receive(self, targets: dict[str, np.ndarray], spec: ModelSpec) -> None:
        """Runs a reader's part of a round: receive every bucket and copy its slices into `targets`."""
        targets_of: dict[str, list[tuple[np.ndarray, Box]]] = {}
        for name, parameter in owned(spec, self.case, self.rank - self.case.trainers).items():
            for part in parameter.parts:
                into = targets[name][part.target.slices()]
                targets_of.setdefault(part.source, []).append((into, part.box))
        for bucket in range(len(self.buckets.sizes)):
            self._broadcast(bucket)
            for name, whole in self.buckets.tensors(bucket, self._full).items():
                for into, box in targets_of.get(name, ()):
                    np.copyto(into, whole[box.slices()])

    def _broadcast(self, bucket: int) -> None:
        dist.broadcast(_bytes(self._full[: self.buckets.sizes[bucket]]), src=0, group=self._readers)


def _bytes(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.view(np.uint8))
