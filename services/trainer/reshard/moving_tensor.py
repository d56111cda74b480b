"""A tensor on its way from one layout to another, as one rank holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from earl.dispatch.layout.box import Box
from earl.dispatch.plan.reshard_plan import Reshard


class TensorMemory:
    """A rank's box of a tensor, whose memory is given back and taken again: every view of it follows.

    local: the tensor as it is now. make: allocates it, the first time that it is taken; None if it is there.
    values: shaped as the box; only while the memory is held.
    """

    def __init__(
        self,
        local: Callable[[], torch.Tensor],
        box: Box,
        item_bytes: int,
        make: Callable[[], None] | None = None,
    ) -> None:
        self.box, self.item_bytes = box, item_bytes
        self._local, self._make = local, make
        self._payload_bytes = box.size * item_bytes
        self.size_bytes = self._payload_bytes if make is not None else local().untyped_storage().nbytes()

    @property
    def values(self) -> torch.Tensor:
        return self._local().view(self.box.shape)

    def part(self, box: Box) -> torch.Tensor:
        """The values of the part of this rank's box that is `box`."""
        return self.values[box.relative_to(self.box.start).slices()]

    def shares(self, other: TensorMemory) -> bool:
        """Returns whether both are the same memory: what is written to one is in the other."""
        storages = [memory._local().untyped_storage() for memory in (self, other)]
        return self.size_bytes > 0 and storages[0]._cdata == storages[1]._cdata

    def free(self) -> None:
        self._local().untyped_storage().resize_(0)

    def take(self) -> None:
        """Takes memory again. Values are arbitrary, but zeros where the box does not reach (FSDP2 pads)."""
        if self._make is not None:
            self._make()
            self._make = None
            self.size_bytes = self._local().untyped_storage().nbytes()
        local = self._local()
        storage = local.untyped_storage()
        storage.resize_(self.size_bytes)
        if self.size_bytes > self._payload_bytes:
            torch.empty(0, dtype=torch.uint8, device=local.device).set_(storage).zero_()


@dataclass(frozen=True, slots=True)
class MovingTensor:
    """One tensor on this rank: `old` holds its box of reshard.before, `new` its box of reshard.after.

    name: for messages.
    """

    reshard: Reshard
    old: TensorMemory
    new: TensorMemory
    name: str = ""

    @property
    def item_bytes(self) -> int:
        return self.reshard.item_bytes

    @property
    def in_place(self) -> bool:
        """Returns whether this rank's box stays where it is: nothing is taken, copied or freed for it."""
        return self.new.shares(self.old)

    def reversed(self) -> MovingTensor:
        """The same tensor on its way back."""
        return MovingTensor(self.reshard.reversed(), self.new, self.old, self.name)
