"""One way to move the rows from the producers to the consumers: the three sides of an arm.

open_controller ─► open_producer ─► open_consumer      once; each may return what the later sides must know
prepare                                                each round, not timed: producers, then the rest
gate ─► produce · control · consume                    timed: until the last consumer is done
"""

from __future__ import annotations

from typing import Any

from benchmarks.dispatch.member import Done, Member, Round
from benchmarks.dispatch.pattern import TENSOR, fill, key
from earl.dispatch.publish.tensor_store import TensorSpec


class Arm:
    """One way to move the rows.

    transport: the data plane's transport whose arena holds the produced rows.
    """

    transport = "shm"

    async def open_controller(self, me: Member) -> Any:
        return None

    async def open_producer(self, me: Member) -> Any:
        return None

    async def open_consumer(self, me: Member) -> None:
        return None

    async def prepare_producer(self, me: Member, round_: Round) -> None:
        """Writes this round's rows into the arena, in place."""
        store, name = await me.store(self.transport), key(me.rank, round_.number)
        box = round_.pattern.held(me.rank)
        me.array = store.reserve(name, {TENSOR: TensorSpec("int32", round_.pattern.shape, box)})[TENSOR]
        fill(me.array, box, round_.number)

    async def prepare(self, me: Member, round_: Round) -> None:
        """Prepares a round on a controller or consumer; not timed."""

    async def produce(self, me: Member, round_: Round) -> Done:
        raise NotImplementedError

    async def control(self, me: Member, round_: Round) -> Done:
        return Done()

    async def consume(self, me: Member, round_: Round) -> Done:
        """Fills `me.array`, int32[2 x rows, HALF], with the two producers' half rows."""
        raise NotImplementedError

    async def close(self) -> None:
        """Releases what this side's open_ method opened."""
