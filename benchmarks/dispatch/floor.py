"""The floor under shared memory: the same strided slices, copied from memory already mapped and touched."""

from __future__ import annotations

import mmap
import os
import time

import numpy as np

from benchmarks.dispatch.arm import Arm
from benchmarks.dispatch.member import Done, Member, Round
from benchmarks.dispatch.pattern import COLUMNS, DTYPE, half, key, readers, sources


class MemcpyFloor(Arm):
    """np.copyto by every consumer after a word, one thread each; where the rows lie is known beforehand."""

    def __init__(self) -> None:
        self._mapped: dict[str, mmap.mmap] = {}
        self._sources: list[np.ndarray] = []

    async def prepare_producer(self, me: Member, round_: Round) -> None:
        await super().prepare_producer(me, round_)
        await (await me.store(self.transport)).publish(key(me.rank, round_.number))

    async def prepare(self, me: Member, round_: Round) -> None:
        if me.role != "consumer":
            return
        descriptors = await me.registry.get([key(producer, round_.number) for producer in sources(me.rank)])
        shards = [descriptor.tensors[0].shards[0] for descriptor in descriptors]
        self._sources = [
            np.ndarray(
                (round_.rows, COLUMNS),
                DTYPE,
                self._map(shard.region.arena.path),
                shard.region.offset_bytes + shard.offset_bytes,
            )[:, half(me.rank)]
            for shard in shards
        ]

    async def produce(self, me: Member, round_: Round) -> Done:
        me.word(readers(me.rank))
        return Done()

    async def consume(self, me: Member, round_: Round) -> Done:
        me.words(2)
        began_ns = time.monotonic_ns()
        for producer, source in zip(sources(me.rank), self._sources, strict=True):
            np.copyto(me.array[round_.pattern.part(me.rank, producer)], source)
        return Done(me.array.nbytes, time.monotonic_ns() - began_ns)

    async def close(self) -> None:
        self._sources.clear()
        self._mapped.clear()

    def _map(self, path: str) -> mmap.mmap:
        if path not in self._mapped:
            fd = os.open(path, os.O_RDONLY)
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self._mapped[path] = mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ)
            os.close(fd)
        return self._mapped[path]
