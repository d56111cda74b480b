"""Owners of a class of tensors, in memory: what each publishes, and reads of it carried out."""

from __future__ import annotations

import numpy as np

from earl.dispatch.describe.descriptor import Descriptor
from earl.dispatch.describe.regions import ArenaRef, RegionRef, host_id
from earl.dispatch.describe.tensor_classes import ClassShard, TensorClass, spaced
from earl.dispatch.read.resolve import FromArena, Read, ReadPlan
from earl.dispatch.read.resolve_classes import CREDIT_BYTES, resolve
from earl.dispatch.registry import codec
from earl.dispatch.transport.copying import copy


class Owners:
    """Every rank of a class's mesh, each with the bytes that it publishes."""

    def __init__(self, one: TensorClass, whole: np.ndarray, version: int = 1, name: str = "o") -> None:
        self.memory: dict[int, np.ndarray] = {}
        self.descriptors: dict[str, Descriptor] = {}
        for rank in range(len(one.layout.owners)):
            count, size_bytes = one.extent(rank)
            offset, step = 128, spaced(size_bytes)
            memory = np.zeros(64 + offset + count * step + 64, np.uint8)
            runs = one.layout.runs(rank)
            part = whole[
                np.ix_(
                    *(np.concatenate([[], *(np.arange(*run) for run in each)]).astype(int) for each in runs)
                )
            ]
            names, shape = one.held(rank)
            assert len(names) == count and (not count or part.shape[one.layout.stack :] == shape)
            for i, array in enumerate(part.reshape(-1, *shape) if count else []):
                first = 64 + offset + i * step
                memory[first : first + size_bytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
            arena = ArenaRef(f"{name}{rank}", 1, "", 100 * version + rank, len(memory), "", "cpu", host_id())
            region = RegionRef(arena, 0, 1, 64, len(memory) - 64)
            self.memory[arena.nonce] = memory
            shard = ClassShard(one, rank, region, offset, step)
            key = f"weights/{version}/{rank}"
            self.descriptors[key] = codec.decode(codec.encode(Descriptor(key, version, (), (shard,))))

    def read(self, reads: list[Read]) -> ReadPlan:
        copies = ReadPlan()
        resolve(reads, self.descriptors, copies)
        self.carry_out(copies.by_arena())
        return copies

    def carry_out(self, sources: list[FromArena]) -> None:
        for source in sources:
            for pieces in source.pieces(CREDIT_BYTES):
                copy(self.memory[source.arena.nonce], pieces)
