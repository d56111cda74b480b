"""DTensor placements and their like, as plain tuples: what each mesh dimension does to a tensor. Pure.

    ("replicate",)                      every rank of the mesh dimension holds it all
    ("shard", dim)                      torch.chunk along dim, uneven lengths too
    ("strided_shard", dim, split)       first `split` parts, then each over the ranks: stacked matrices
    ("zigzag", dim)                     rank r of n holds chunks r and 2n-1-r of 2n: context parallelism

One placement per mesh dimension, applied from the left; `shard_order` brings DTensor's, which FSDP2
writes in another order than it shards, into that form. All act on one tensor dimension each, so a rank's
part is a product of ranges per dimension (`runs`), and a whole layout one `DimensionSplit` per dimension,
whatever the size of the mesh. Experts stacked in one tensor [experts, …] are ("shard", 0) over the
expert-parallel ranks, with any sharding inside each expert in addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from earl.dispatch.layout.box import Box, chunk_range
from earl.errors import LayoutError

Placement = tuple[str] | tuple[str, int] | tuple[str, int, int]
# Ranges of one dimension, start <= index < stop, in the order in which they lie in local memory.
Runs = tuple[tuple[int, int], ...]


def check(shape: Sequence[int], mesh_shape: Sequence[int], placements: Sequence[Placement]) -> None:
    """Raises LayoutError for a placement that is none, a dimension out of range, or a count that differs."""
    if len(mesh_shape) != len(placements) or any(count < 1 for count in mesh_shape):
        raise LayoutError(
            f"mesh {tuple(mesh_shape)} with placements {tuple(placements)}",
            "give one placement per mesh dimension, of at least one rank",
        )
    for placement in placements:
        match placement:
            case ("replicate",):
                continue
            case ("shard" | "zigzag", int(dim)) if 0 <= dim < len(shape):
                continue
            case ("strided_shard", int(dim), int(split)) if 0 <= dim < len(shape) and split >= 1:
                continue
            case ("partial", *_):
                raise LayoutError(
                    f"placement {placement!r}: no rank holds the tensor's values, only terms of a sum",
                    "reduce it first: tensor.redistribute(placements=[Replicate()]) or Shard(dim)",
                )
        raise LayoutError(
            f"placement {placement!r} of a tensor of shape {tuple(shape)}",
            "use replicate, shard, strided_shard or zigzag, with a dimension that the tensor has",
        )


def shard_order(
    mesh_shape: Sequence[int], placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[Placement, ...]]:
    """(mesh dimensions in the order in which they split the tensor, their placements in that order).

    torch writes an order of its own as strided shards: `split` counts the ranks of the later mesh dimensions
    that split before. Such become plain shards here, and then uneven lengths too fall as they were split:
    FSDP2 over TP, (("strided_shard", 0, 4), ("shard", 0)) on a mesh (2, 4), is (1, 0) and two plain shards.
    A strided shard that is alone in its tensor dimension (of matrices stacked in one) stays. One among other
    shards of that dimension that no order explains raises LayoutError: which of them splits first is not
    known, and torch refuses to redistribute it, too.
    """
    plain = list(placements)
    chains: dict[int, list[int]] = {}
    for i in reversed(range(len(placements))):
        placement = placements[i]
        if placement[0] == "replicate":
            continue
        dim = int(placement[1])  # pyright: ignore[reportGeneralTypeIssues]
        chain = chains.setdefault(dim, [])
        before = [prod(mesh_shape[j] for j in chain[:n]) for n in range(len(chain) + 1)]
        split = int(placement[2]) if placement[0] == "strided_shard" else 1  # pyright: ignore[reportGeneralTypeIssues]
        chain.insert(before.index(split) if split in before else 0, i)
        if placement[0] == "strided_shard" and (split in before or mesh_shape[i] == 1):
            plain[i] = ("shard", dim)
    order = list(range(len(placements)))
    for dim, chain in chains.items():
        several = sum(mesh_shape[i] > 1 for i in chain) > 1
        if several and any(plain[i][0] == "strided_shard" for i in chain):
            raise LayoutError(
                f"placements {tuple(placements)} on a mesh {tuple(mesh_shape)}: no order of the mesh's "
                f"dimensions explains the strided shards of dimension {dim}",
                "keep matrices apart instead of stacking them, or shard another dimension",
            )
        for place, i in zip(sorted(chain), chain, strict=True):
            order[place] = i
    return tuple(order), tuple(plain[i] for i in order)


def placement_runs(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    placements: Sequence[Placement],
    coordinates: Sequence[int],
) -> tuple[Runs, ...]:
    """Returns for each tensor dimension the global ranges that the rank at these mesh coordinates holds.

    Their product, laid end to end in each dimension, is its local array. Raises LayoutError.
    """
    check(shape, mesh_shape, placements)
    if len(coordinates) != len(mesh_shape) or any(
        not 0 <= index < n for index, n in zip(coordinates, mesh_shape, strict=False)
    ):
        raise LayoutError(f"coordinates {tuple(coordinates)}", f"use those of a mesh {tuple(mesh_shape)}")
    runs: list[Runs] = [((0, int(n)),) for n in shape]
    for count, placement, index in zip(mesh_shape, placements, coordinates, strict=True):
        if placement[0] != "replicate":
            dim = int(placement[1])  # pyright: ignore[reportGeneralTypeIssues]
            runs[dim] = _ranges_of_rank(runs[dim], placement, count, index)
    return tuple(tuple(run for run in ranges if run[0] < run[1]) for ranges in runs)


def placement_boxes(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    placements: Sequence[Placement],
    coordinates: Sequence[int],
) -> tuple[Box, ...]:
    """The boxes of a rank's local part, in the order in which its rows lie in local memory.

    A strided or zigzag shard may give several; one that holds nothing gives none. Raises LayoutError.
    """
    runs = placement_runs(shape, mesh_shape, placements, coordinates)
    return tuple(Box(tuple(a for a, _ in corner), tuple(b for _, b in corner)) for corner in product(*runs))


@dataclass(frozen=True, slots=True, eq=False)
class DimensionSplit:
    """The split of one dimension over parts: segments sorted by start, covering it exactly once.

    start, stop, local: int64[S]; part: int32[S]. local: where a segment begins in its part's local index.
    """

    parts: int
    start: np.ndarray
    stop: np.ndarray
    part: np.ndarray
    local: np.ndarray

    def overlap(self, ranges: Runs) -> Overlap:
        """Returns what a reader of these global ranges, in the order in which it keeps them, takes from each
        part.
        """
        lows = np.array([a for a, _ in ranges], np.int64)
        highs = np.array([b for _, b in ranges], np.int64)
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(highs - lows)])
        first = np.searchsorted(self.stop, lows, "right")
        last = np.searchsorted(self.start, highs, "left")
        counts = np.maximum(last - first, 0)
        run = np.repeat(np.arange(len(ranges)), counts)
        segment = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + first[run]
        start = np.maximum(self.start[segment], lows[run])
        extent = np.minimum(self.stop[segment], highs[run]) - start
        source = self.local[segment] + start - self.start[segment]
        target = before[run] + start - lows[run]
        return Overlap(self.part[segment], start, extent, source, target, extent)


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """Ranges of one dimension that a reader takes from parts, in the order of its own index.

    part: int32[S]. start: global index; whole: length without a break in the tensor; source, target: index
    in the part and in the reader; extent: length. int64[S] each. Once joined, extent may exceed whole.
    """

    part: np.ndarray
    start: np.ndarray
    whole: np.ndarray
    source: np.ndarray
    target: np.ndarray
    extent: np.ndarray

    def joined(self) -> Overlap:
        """Neighbours both in the part and in the reader become one, wherever they lie in the tensor."""
        if len(self.part) < 2:
            return self
        end = self.source + self.extent
        new = np.ones(len(self.part), bool)
        new[1:] = (self.part[1:] != self.part[:-1]) | (self.source[1:] != end[:-1])
        first = np.flatnonzero(new)
        extent = np.add.reduceat(self.extent, first)
        return Overlap(
            self.part[first],
            self.start[first],
            self.whole[first],
            self.source[first],
            self.target[first],
            extent,
        )


@lru_cache(maxsize=1024)
def split_of(length: int, steps: tuple[tuple[Placement, int], ...]) -> DimensionSplit:
    """Splits one dimension by mesh dimensions, each (placement, ranks), applied from the left."""
    counts = [count for _, count in steps]
    # (start, stop, part, local) of each.
    segments: list[tuple[int, int, int, int]] = []
    for part, indexes in enumerate(product(*map(range, counts))):
        runs: Runs = ((0, length),)
        for (placement, count), index in zip(steps, indexes, strict=True):
            runs = _ranges_of_rank(runs, placement, count, index)
        local = 0
        for start, stop in runs:
            if start < stop:
                segments.append((start, stop, part, local))
                local += stop - start
    table = np.array(sorted(segments), np.int64).reshape(-1, 4)
    starts, stops, parts, locals_ = np.ascontiguousarray(table.T)
    return DimensionSplit(prod(counts), starts, stops, parts.astype(np.int32), locals_)


def _ranges_of_rank(runs: Runs, placement: Placement, count: int, index: int) -> Runs:
    """The global ranges that rank `index` of `count` holds of these ranges under one placement."""
    length = sum(stop - start for start, stop in runs)
    if placement[0] == "shard":
        return _global_ranges(runs, [chunk_range(length, index, count)])
    if placement[0] == "zigzag":
        return _global_ranges(
            runs, [chunk_range(length, i, 2 * count) for i in (index, 2 * count - 1 - index)]
        )
    local: list[tuple[int, int]] = []
    split = int(placement[2])  # pyright: ignore[reportGeneralTypeIssues]
    for i in range(split):
        low, high = chunk_range(length, i, split)
        first, last = chunk_range(high - low, index, count)
        local.append((low + first, low + last))
    return _global_ranges(runs, local)


def _global_ranges(runs: Runs, local: Sequence[tuple[int, int]]) -> Runs:
    """The global ranges of local ranges `local`, where `runs` laid end to end are the local indices."""
    ranges: list[tuple[int, int]] = []
    for low, high in local:
        base = 0
        for start, stop in runs:
            first, last = max(low, base), min(high, base + stop - start)
            if first < last:
                piece = (start + first - base, start + last - base)
                if ranges and ranges[-1][1] == piece[0]:
                    piece = (ranges.pop()[0], piece[1])
                ranges.append(piece)
            base += stop - start
    return tuple(ranges)
