"""The floors under shared memory: the same strided slices, copied from memory already mapped and touched.

One floor only copies. The other one hashes as well, once on each side, as a verified read must.
"""

from __future__ import annotations

import mmap
import os
import time

import numpy as np

from benchmarks.dispatch.arm import Arm
from benchmarks.dispatch.member import Done, Member, Round
from benchmarks.dispatch.pattern import COLUMNS, DTYPE, half, key, readers, sources
from earl.dispatch.memory.digests import region_digests


class MemcpyFloor(Arm):
    """np.copyto by every consumer after a word, one thread each; where the rows lie is known beforehand."""

    def __init__(self) -> None:
        self._mapped: dict[str, mmap.mmap] = {}
        # The rows of the producers that this consumer reads, whole.
        self._rows: list[np.ndarray] = []
        self._sources: list[np.ndarray] = []

    async def prepare_producer(self, me: Member, round_: Round) -> None:
        await super().prepare_producer(me, round_)
        await (await me.store(self.transport)).publish(key(me.rank, round_.number))

    async def prepare(self, me: Member, round_: Round) -> None:
        if me.role != "consumer":
            return
        descriptors = await me.registry.get([key(producer, round_.number) for producer in sources(me.rank)])
        shards = [descriptor.tensors[0].shards[0] for descriptor in descriptors]
        self._rows = [
            np.ndarray(
                (round_.rows, COLUMNS),
                DTYPE,
                self._map(shard.region.arena.path),
                shard.region.offset_bytes + shard.offset_bytes,
            )
            for shard in shards
        ]
        self._sources = [rows[:, half(me.rank)] for rows in self._rows]

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
        self._rows.clear()
        self._mapped.clear()

    def _map(self, path: str) -> mmap.mmap:
        if path not in self._mapped:
            fd = os.open(path, os.O_RDONLY)
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self._mapped[path] = mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ)
            os.close(fd)
        return self._mapped[path]


class MemcpyHashFloor(MemcpyFloor):
    """MemcpyFloor and one pass of the data plane's hash on each side: producers hash their rows before the
    word, consumers the rows out of which they have copied."""

    async def produce(self, me: Member, round_: Round) -> Done:
        region_digests(me.array.reshape(-1).view(np.uint8))
        return await super().produce(me, round_)

    async def consume(self, me: Member, round_: Round) -> Done:
        copied = await super().consume(me, round_)
        began_ns = time.monotonic_ns()
        for rows in self._rows:
            region_digests(rows.reshape(-1).view(np.uint8))
        return Done(copied.moved_bytes, copied.part_ns + time.monotonic_ns() - began_ns)
