"""`plan(source, target)`: the copies that fill a box from a layout's shards. Pure.

Promise: every element of the target box is copied exactly once, from the shard whose owner costs
least (of those, the one with the fewest bytes planned); neighbouring pieces of one shard are joined;
what no shard holds raises LayoutGap naming the box. For any boxes; `class_plan` plans classes of tensors
on a mesh, `sequence_plan` packed sequences. Idea: allgather-free resharding (MindSpeed RL, 2507.19017).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from earl.dispatch.layout.box import Box, Layout
from earl.errors import LayoutError, LayoutGap


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy: `source` counted from the shard's first element, `target` from the target box's.

    Both have the same shape. Example: Copy(1, Box((0,), (2,)), Box((4,), (6,))).
    """

    shard_index: int
    source: Box
    target: Box


def plan(
    source: Layout,
    target: Box,
    cost: Mapping[str, float] | None = None,
    planned: Mapping[str, int] | None = None,
) -> list[Copy]:
    """The copies that fill `target` (global indices) from the shards of `source`.

    cost: what reading from an owner costs, by its name (distance, load); missing owners cost 0.
    planned: bytes that are to be read from an owner already; among equal costs the fewest win, then the
    layout's order. Raises LayoutGap, LayoutError.
    """
    if len(target.start) != len(source.shape) or not Box.whole(source.shape).contains(target):
        raise LayoutError(
            f"{source.name}: box {target} lies outside shape {source.shape}",
            "give the box in the tensor's global indices",
        )
    costs, loads = cost or {}, planned or {}
    order = sorted(
        (i for i, shard in enumerate(source.shards) if shard.box.intersect(target) is not None),
        key=lambda i: (costs.get(source.shards[i].owner, 0.0), loads.get(source.shards[i].owner, 0), i),
    )
    if order and target.size and source.shards[order[0]].box.contains(target):
        box = source.shards[order[0]].box
        return [Copy(order[0], target.relative_to(box.start), target.relative_to(target.start))]
    missing = [target] if target.size else []
    copies: list[Copy] = []
    for index in order:
        if not missing:
            break
        box = source.shards[index].box
        taken: list[Box] = []
        rest: list[Box] = []
        for piece in missing:
            common = piece.intersect(box)
            if common is None:
                rest.append(piece)
            else:
                taken.append(common)
                rest.extend(piece.subtract(common))
        missing = rest
        copies.extend(
            Copy(index, part.relative_to(box.start), part.relative_to(target.start)) for part in join(taken)
        )
    if missing:
        raise LayoutGap(
            f"{source.name}: no shard holds {missing[0]} of {target}",
            f"publish it or wait for it; shards are held by {sorted({s.owner for s in source.shards})}",
        )
    return copies


def join(boxes: list[Box]) -> list[Box]:
    """The same elements in fewer boxes: neighbours that differ in one dimension become one."""
    joined = list(boxes)
    if len(joined) < 2:
        return joined
    for dim in range(len(joined[0].start)):

        def across(box: Box, dim: int = dim) -> tuple[tuple[int, ...], ...]:
            start, stop = box.start, box.stop
            return start[:dim] + start[dim + 1 :], stop[:dim] + stop[dim + 1 :], (start[dim],)

        merged: list[Box] = []
        for box in sorted(joined, key=across):
            last = merged[-1] if merged else None
            if last is not None and across(last)[:2] == across(box)[:2] and last.stop[dim] == box.start[dim]:
                merged[-1] = Box(last.start, box.stop)
            else:
                merged.append(box)
        joined = merged
    return joined
