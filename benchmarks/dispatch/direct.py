"""EARL's data plane: consumers read the producers' arenas themselves, or a controller's copy of them."""

from __future__ import annotations

import asyncio
import time

from benchmarks.dispatch.arm import Arm
from benchmarks.dispatch.member import WAIT_S, Done, Member, Round
from benchmarks.dispatch.pattern import PRODUCERS, TENSOR, central_key, key, readers, sources
from earl.dispatch.publish.tensor_store import TensorSpec
from earl.dispatch.read.reader import Read, Repeated, VersionRead


class Direct(Arm):
    """publish (the registry's answer) ─► a word ─► every consumer reads its slices of two arenas."""

    def __init__(self, transport: str) -> None:
        self.transport = transport
        # What a consumer reads, by rows: the same in every round of a size, so it is planned once.
        self._targets: dict[int, Repeated] = {}

    async def open_producer(self, me: Member) -> None:
        await me.store(self.transport)

    async def open_consumer(self, me: Member) -> None:
        await me.dispatcher(self.transport)

    async def produce(self, me: Member, round_: Round) -> Done:
        began_ns = time.monotonic_ns()
        await (await me.store(self.transport)).publish(key(me.rank, round_.number))
        published_ns = time.monotonic_ns()
        me.word(readers(me.rank))
        return Done(part_ns=published_ns - began_ns)

    async def consume(self, me: Member, round_: Round) -> Done:
        me.words(2)
        keys = tuple(key(producer, round_.number) for producer in sources(me.rank))
        return await self.read(me, round_, keys)

    async def read(self, me: Member, round_: Round, keys: tuple[str, ...]) -> Done:
        began_ns = time.monotonic_ns()
        if round_.rows not in self._targets:
            self._targets[round_.rows] = Repeated([(TENSOR, round_.pattern.target_box(me.rank), me.array)])
        version_read = VersionRead(keys, self._targets[round_.rows])
        receipt = await (await me.dispatcher(self.transport)).read([version_read], WAIT_S)
        bytes_ns = round((receipt.seconds - receipt.planned_s) * 1e9)
        return Done(receipt.size_bytes, time.monotonic_ns() - began_ns, bytes_ns)


class CentralSameTransport(Direct):
    """A controller reads whole producers over the same transport into its arena; consumers read it."""

    async def open_controller(self, me: Member) -> None:
        await me.store(self.transport)
        await me.dispatcher(self.transport)

    async def produce(self, me: Member, round_: Round) -> Done:
        await (await me.store(self.transport)).publish(key(me.rank, round_.number))
        me.word(["controller"])
        return Done()

    async def control(self, me: Member, round_: Round) -> Done:
        store, dispatcher = await me.store(self.transport), await me.dispatcher(self.transport)

        async def forward(producer: int) -> int:
            box, name = round_.pattern.held(producer), central_key(producer, round_.number)
            target = store.reserve(name, {TENSOR: TensorSpec("int32", round_.pattern.shape, box)})[TENSOR]
            read = Read((key(producer, round_.number),), TENSOR, box, target)
            receipt = await dispatcher.read([read], WAIT_S)
            await store.publish(name)
            me.word(readers(producer))
            return receipt.size_bytes

        return Done(sum(await asyncio.gather(*(forward(producer) for producer in me.words(PRODUCERS)))))

    async def consume(self, me: Member, round_: Round) -> Done:
        me.words(2)
        keys = tuple(central_key(producer, round_.number) for producer in sources(me.rank))
        return await self.read(me, round_, keys)
