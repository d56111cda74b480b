"""One owner's reads of whole classes of tensors, as arrays: `plan_reads(wants)`. Pure.

    want: source layout × what this owner holds ─► overlaps, a dimension at a time ─► their product
        ─► a CopyBlock: these copies, for each of these tensors ─► replicas dealt by cost and bytes

Promise: each element is copied exactly once, in the fewest boxes; the nearest owner that holds
it serves it, and among equally near ones none gets more than its fair share plus one copy. Tensors that
lie alike share one CopyBlock, so a plan for tens of thousands of tensors stays small, and no Python object
stands for a copy. What no owner can give raises LayoutGap naming the box. Each owner plans its own
reads alone. Idea: allgather-free resharding (MindSpeed RL, 2507.19017).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from earl.dispatch.layout.box import Box
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import Overlap, Runs
from earl.dispatch.plan.balance import deal, fill
from earl.errors import LayoutError, LayoutGap


@dataclass(frozen=True, slots=True, eq=False)
class CopyBlock:
    """G copies that each of T tensors needs: T × G copies in all. R: dimensions of a tensor.

    want: index of the want that this serves. tensors: int64[T], numbers in the want's class.
    peer: int32[G], index into owners. source, target, extent: int64[G, R], first index in the peer's
    local array, first index in the reader's, and length. item_bytes: int64[T], of one element.
    priority: int32[G], lower is read sooner.
    """

    want: int
    tensors: np.ndarray
    peer: np.ndarray
    source: np.ndarray
    target: np.ndarray
    extent: np.ndarray
    item_bytes: np.ndarray
    priority: np.ndarray

    @property
    def copies(self) -> int:
        return len(self.tensors) * len(self.peer)

    @property
    def elements(self) -> np.ndarray:
        """int64[G]: elements of each copy, of one tensor."""
        return self.extent.prod(axis=1, dtype=np.int64)

    @property
    def size_bytes(self) -> int:
        return int(self.elements.sum()) * int(self.item_bytes.sum())


@dataclass(frozen=True, slots=True)
class Want:
    """An owner's request for a class of tensors: `runs`, ranges per dimension, the stack's too.

    Its local arrays are those ranges laid end to end. item_bytes: bytes of an element. priority: lower first.
    """

    source: MeshLayout
    runs: tuple[Runs, ...]
    item_bytes: int
    priority: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """Everything one owner reads. loads: int64[owners], bytes from each, those given beforehand included."""

    owners: tuple[str, ...]
    blocks: tuple[CopyBlock, ...]
    loads: np.ndarray

    @property
    def copies(self) -> int:
        return sum(block.copies for block in self.blocks)

    @property
    def size_bytes(self) -> int:
        return sum(block.size_bytes for block in self.blocks)


def plan_reads(
    wants: Sequence[Want], cost: np.ndarray | None = None, loads: np.ndarray | None = None
) -> Reads:
    """The reads that fill everything that one owner wants. All sources have the same owners.

    cost: float64[owners], what reading from each costs (distance); inf where one cannot be read now.
    loads: int64[owners], bytes that are planned from each already. Raises LayoutGap, LayoutError.
    """
    owners = wants[0].source.owners if wants else ()
    if any(want.source.owners != owners for want in wants):
        raise LayoutError("wants of sources with different owners", "plan each set of owners by itself")
    costs = per_owner("cost", cost, len(owners), np.float64)
    total = per_owner("loads", loads, len(owners), np.int64)
    blocks: list[CopyBlock] = []
    for number, want in enumerate(wants):
        for block in _blocks(number, want, costs, total):
            blocks.append(block)
            each = block.elements * int(block.item_bytes.sum())
            np.add.at(total, block.peer, each)
    return Reads(owners, tuple(blocks), total)


def per_owner(name: str, given: np.ndarray | None, count: int, dtype: type) -> np.ndarray:
    """A copy of `given`, zeros for None. Raises LayoutError unless it has dtype[count]."""
    values = np.zeros(count, dtype) if given is None else np.array(given, dtype)
    if values.shape != (count,):
        raise LayoutError(f"{name} of shape {values.shape} for {count}", "give exactly one number for each")
    return values


def _blocks(number: int, want: Want, cost: np.ndarray, loads: np.ndarray) -> Iterator[CopyBlock]:
    """Blocks of one want; `loads` is read again after each one, and must have it added."""
    source, stack = want.source, want.source.stack
    if len(want.runs) != len(source.shape):
        raise LayoutError(
            f"ranges in {len(want.runs)} dimensions of shape {source.shape}",
            "give each dimension's, the stack's too",
        )
    for length, runs in zip(source.shape, want.runs, strict=True):
        if any(not 0 <= a < b <= length for a, b in runs):
            raise LayoutError(f"ranges {runs} of {source.shape}", "give the tensor's global indices")
    if not all(want.runs):
        return
    overlaps = [split.overlap(runs) for split, runs in zip(source.splits(), want.runs, strict=True)]
    numbers = [_by_part(overlap) for overlap in overlaps[:stack]]
    inner = [overlap.joined() for overlap in overlaps[stack:]]
    rows = _Rows.of(inner)
    holders = source.holders()
    for parts in product(*numbers):
        tensors = np.zeros(1, np.int64)
        for length, of_part, part in zip(source.shape[:stack], numbers, parts, strict=True):
            tensors = (tensors[:, None] * length + of_part[part]).ravel()
        candidates = holders[(*parts, *rows.parts)].reshape(len(rows.extent), -1)
        nearest = cost[candidates].min(axis=1)
        if not np.isfinite(nearest).all():
            gap = int(np.flatnonzero(~np.isfinite(nearest))[0])
            held = sorted({source.owners[i] for i in candidates[gap]})
            box = _box(inner, gap)
            raise LayoutGap(
                f"no shard holds {box} of tensor {int(tensors[0])} of shape {source.shape[stack:]}",
                f"publish it or wait for it; it belongs to {', '.join(held[:8])}",
            )
        priority = np.full(len(rows.extent), want.priority, np.int32)
        for chosen, index, peer in _serving_peers(
            candidates, cost[candidates] == nearest[:, None], rows, len(tensors), want.item_bytes, loads
        ):
            yield CopyBlock(
                number,
                tensors[chosen],
                peer,
                rows.source[index],
                rows.target[index],
                rows.extent[index],
                np.full(len(tensors[chosen]), want.item_bytes, np.int64),
                priority[index],
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The product of overlaps. parts: R arrays int32[G]; source, target, extent: int64[G, R]."""

    parts: tuple[np.ndarray, ...]
    source: np.ndarray
    target: np.ndarray
    extent: np.ndarray

    @classmethod
    def of(cls, overlaps: Sequence[Overlap]) -> _Rows:
        sizes = [len(overlap.part) for overlap in overlaps]
        rows = int(np.prod(sizes, dtype=np.int64))
        indices = [index.ravel() for index in np.indices(sizes, np.int32)] if sizes else []
        made = {name: np.zeros((rows, len(sizes)), np.int64) for name in ("source", "target", "extent")}
        for dim, (overlap, index) in enumerate(zip(overlaps, indices, strict=True)):
            for name, array in made.items():
                array[:, dim] = getattr(overlap, name)[index]
        parts = tuple(overlap.part[index] for overlap, index in zip(overlaps, indices, strict=True))
        return cls(parts, **made)


def _box(overlaps: Sequence[Overlap], row: int) -> Box:
    """The box of the tensor that row number `row` of the overlaps' product reads."""
    indices = np.unravel_index(row, [len(overlap.part) for overlap in overlaps]) if overlaps else ()
    start = [int(overlap.start[i]) for overlap, i in zip(overlaps, indices, strict=True)]
    whole = [int(overlap.whole[i]) for overlap, i in zip(overlaps, indices, strict=True)]
    return Box(tuple(start), tuple(a + n for a, n in zip(start, whole, strict=True)))


def _by_part(overlap: Overlap) -> dict[int, np.ndarray]:
    """The indices of one dimension in each part, int64, in the order of an overlap that is not joined."""
    by_part: dict[int, list[np.ndarray]] = {}
    for part, start, extent in zip(
        overlap.part.tolist(), overlap.start.tolist(), overlap.extent.tolist(), strict=True
    ):
        by_part.setdefault(part, []).append(np.arange(start, start + extent))
    return {part: np.concatenate(arrays) for part, arrays in by_part.items()}


def _serving_peers(
    candidates: np.ndarray, near: np.ndarray, rows: _Rows, tensors: int, item_bytes: int, loads: np.ndarray
) -> Iterator[tuple[slice, np.ndarray | slice, np.ndarray]]:
    """(tensors, rows, peer of each row): who serves what. candidates: int32[G, K]; near: bool[G, K]."""
    if candidates.shape[1] == 1:
        yield slice(0, tensors), slice(None), candidates[:, 0]
        return
    sizes = rows.extent.prod(axis=1, dtype=np.int64) * item_bytes
    # Rows of one part have the same candidates; parts whose shares fall alike go into one block.
    _, part_of = np.unique(candidates[:, 0], return_inverse=True)
    order = np.argsort(part_of, kind="stable")
    alike: dict[tuple[int, ...], list[tuple[np.ndarray, np.ndarray]]] = {}
    for index in np.split(order, np.flatnonzero(np.diff(part_of[order])) + 1):
        peers = candidates[index[0]][near[index[0]]]
        each = int(sizes[index].sum())
        bounds = np.cumsum(fill(loads[peers], each * tensors))
        alike.setdefault((each, *bounds.tolist()), []).append((index, peers))
    for (each, *bounds), group in alike.items():
        before = 0
        single: list[int] = []
        for share, bound in enumerate(bounds):
            # Whole tensors of this share, and the one that the bound divides.
            first, last = -(-before // each), bound // each
            if first < last:
                index = np.concatenate([rows_ for rows_, _ in group])
                peer = np.concatenate([np.full(len(r), p[share], np.int32) for r, p in group])
                yield slice(first, last), index, peer
            if bound % each and (not single or single[-1] != last):
                single.append(last)
            before = bound
        for tensor in single:
            for index, peers in group:
                peer = peers[deal(sizes[index], loads[peers])].astype(np.int32)
                yield slice(tensor, tensor + 1), index, peer
