"""One way to bring the rows from the producers to the consumers: what its three sides do.

open_controller ─► open_producer ─► open_consumer      once; each may say what those after it must know
prepare                                                each round, not timed: producers, then the rest
gate ─► produce · control · consume                    timed: until the last consumer is done
"""

from __future__ import annotations

from typing import Any

from benchmarks.dispatch.member import Done, Member, Round
from benchmarks.dispatch.pattern import TENSOR, fill, key
from earl.dispatch.publish.tensor_store import TensorSpec


class Arm:
    """transport: of the data plane, whose arena holds what was produced."""

    transport = "shm"

    async def open_controller(self, me: Member) -> Any:
        return None

    async def open_producer(self, me: Member) -> Any:
        return None

    async def open_consumer(self, me: Member) -> None:
        return None

    async def prepare_producer(self, me: Member, round_: Round) -> None:
        """The rows come to be in the arena, written in place."""
        store, name = await me.store(self.transport), key(me.rank, round_.number)
        box = round_.pattern.held(me.rank)
        me.array = store.reserve(name, {TENSOR: TensorSpec("int32", round_.pattern.shape, box)})[TENSOR]
        fill(me.array, box, round_.number)

    async def prepare(self, me: Member, round_: Round) -> None:
        """Of a controller or consumer."""

    async def produce(self, me: Member, round_: Round) -> Done:
        raise NotImplementedError

    async def control(self, me: Member, round_: Round) -> Done:
        return Done()

    async def consume(self, me: Member, round_: Round) -> Done:
        """Fill me.array, [2 x rows, HALF]."""
        raise NotImplementedError

    async def close(self) -> None:
        """End what the open_ of this side began."""
