"""Checksums of tensors that are the same in every layout: each rank sums over the box that it holds.

    rank 0   rows 0..4 ─► sum ─┐
    rank 1   rows 4..8 ─► sum ─┴─► of all distinct boxes together: the whole tensor's, mod 2^64

An element counts as its bits times a weight for its indices but the first, as int32, times one for the
first, as int64. The weights are odd and otherwise arbitrary: one changed element always changes the sum.
Elements that are missing, or where others belong, leave it as it is with a probability of about 2^-32. (Two
elements of one row that differ in nothing but their sign may change places unnoticed.)

Promise: equal checksums before and after a move mean equal bits at equal indices, on every rank that holds
them, whatever moved them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from earl.dispatch.layout.box import Box
from services.trainer.ranks.process_group import Group
from services.trainer.reshard.moving_tensor import MovingTensor

log = logging.getLogger(__name__)

# Elements that are multiplied at a time, by device: few enough for a processor's cache, enough to fill a GPU.
_CHUNK = {"cpu": 1 << 16, "cuda": 1 << 24}
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
_WORD = 1 << 64


def box_checksum(values: torch.Tensor, box: Box) -> int:
    """The sum of the elements of a tensor's box. values: shaped as the box, contiguous."""
    if not box.size:
        return 0
    bits = values.view(_BITS[values.element_size()])
    ranges = enumerate(zip(box.start, box.stop, strict=True))
    rows, *columns = (_weights(dim, start, stop).to(bits.device) for dim, (start, stop) in ranges)
    inner = torch.ones(1, dtype=torch.int32, device=bits.device)
    for weights in columns:
        inner = (inner[:, None] * weights.to(torch.int32)).flatten()
    bits = bits.reshape(len(rows), -1)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    step = max(1, _CHUNK[bits.device.type] // len(inner))
    for begin in range(0, len(rows), step):
        chunk = slice(begin, begin + step)
        # sum() adds int32 up as int64.
        total += ((bits[chunk].to(torch.int32) * inner).sum(1) * rows[chunk]).sum()
    return int(total) % _WORD


@lru_cache(maxsize=256)
def _weights(dim: int, start: int, stop: int) -> torch.Tensor:
    """int64[stop - start]: odd numbers by index (splitmix64), other ones in each dimension."""
    mixed = np.arange(start, stop, dtype=np.uint64) + np.uint64((dim + 1) << 40)
    with np.errstate(over="ignore"):
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return torch.from_numpy((mixed | np.uint64(1)).view(np.int64))


def whole_checksum(shape: tuple[int, ...], boxes: Sequence[Box], sums: Sequence[int]) -> int | None:
    """The sum of a tensor from those of its boxes, each held by one rank or several.

    None if ranks hold different values of one box, or if the distinct boxes are not the whole tensor.
    """
    by_box: dict[Box, int] = {}
    for box, of_box in zip(boxes, sums, strict=True):
        if box.size and by_box.setdefault(box, of_box) != of_box:
            return None
    if sum(box.size for box in by_box) != Box.whole(shape).size:
        return None
    return sum(by_box.values()) % _WORD


def moved(tensors: Sequence[MovingTensor], group: Group) -> list[MovingTensor]:
    """Returns the tensors of which some rank's values are copied, the same on every rank. A collective."""
    copied = [not tensor.in_place and tensor.old.box.size + tensor.new.box.size > 0 for tensor in tensors]
    anywhere = group.max(torch.tensor(copied, dtype=torch.int64)).tolist()
    return [tensor for tensor, counts in zip(tensors, anywhere, strict=True) if counts]


@torch.no_grad()
def checksums(tensors: Sequence[MovingTensor], group: Group, *, new: bool) -> list[int | None]:
    """Each tensor's checksum, the same on every rank; None as in `whole_checksum`. A collective.

    new: of the memory that the tensors move to, else of that which they come from.
    """
    held = [tensor.new if new else tensor.old for tensor in tensors]
    mine = np.array([box_checksum(memory.values, memory.box) for memory in held], np.uint64)
    by_rank = [np.frombuffer(data, np.uint64) for data in group.gather(mine.tobytes())]
    totals: list[int | None] = []
    for number, tensor in enumerate(tensors):
        boxes = tensor.reshard.after if new else tensor.reshard.before
        totals.append(whole_checksum(tensor.reshard.shape, boxes, [int(sums[number]) for sums in by_rank]))
    return totals


def differing(
    tensors: Sequence[MovingTensor], before: Sequence[int | None], after: Sequence[int | None]
) -> list[str]:
    """Names the tensors whose values are others after than before.

    Ranks that held different values of a box before have no common checksum: the log warns of those tensors.
    """
    names: list[str] = []
    for tensor, was, is_now in zip(tensors, before, after, strict=True):
        if was is None:
            log.warning("ranks held different values of %s before the switch", tensor.name)
        elif was != is_now:
            names.append(tensor.name)
    return names
