"""torch's DTensor in the words of the layout algebra: which boxes of a tensor a rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from earl.dispatch.layout.box import Box
from earl.dispatch.layout.placements import Placement, cutting_order, placement_boxes
from earl.errors import LayoutError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def from_torch(placements: Sequence[Any], dimensions: int) -> tuple[Placement, ...]:
    """torch's placements of a tensor with that many dimensions as tuples.

    Raises LayoutError for Partial, whose values no rank holds, and for placements that are unknown here.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import Partial, _StridedShard

    found: list[Placement] = []
    for placement in placements:
        if isinstance(placement, Replicate):
            found.append(("replicate",))
        elif isinstance(placement, _StridedShard):
            found.append(("strided_shard", placement.dim % dimensions, int(placement.split_factor)))
        elif isinstance(placement, Shard):
            found.append(("shard", placement.dim % dimensions))
        elif isinstance(placement, Partial):
            raise LayoutError(
                f"placement {placement}: no rank holds the tensor's values, only terms of a sum",
                "reduce it first: tensor.redistribute(placements=[Replicate()]) or Shard(dim)",
            )
        else:
            raise LayoutError(f"placement {placement!r}", "use Shard, Replicate or _StridedShard")
    return tuple(found)


def local_boxes(tensor: DTensor) -> tuple[Box, ...]:
    """The boxes of this rank's local tensor, in the order of its rows; none off the mesh.

    Several only where a strided shard is no order of cuts: matrices stacked in one, each cut. Raises
    LayoutError.
    """
    at = tensor.device_mesh.get_coordinate()
    if at is None:
        return ()
    mesh_shape = tuple(tensor.device_mesh.shape)
    order, placements = cutting_order(mesh_shape, placements_of(tensor))
    boxes = placement_boxes(
        tuple(tensor.shape), [mesh_shape[i] for i in order], placements, [at[i] for i in order]
    )
    held = tensor.to_local().numel()
    if sum(box.size for box in boxes) != held:
        raise LayoutError(
            f"a local tensor of {held} elements where {tensor.placements} give {[str(b) for b in boxes]}",
            "was it padded, or changed in place? publish boxes of your own",
        )
    return boxes


def local_box(tensor: DTensor) -> Box:
    """The one box of this rank's local tensor, of its shape; at the origin if it is empty.

    Raises LayoutError where it is several.
    """
    boxes = local_boxes(tensor)
    shape = tuple(tensor.to_local().shape)
    box = boxes[0] if boxes else Box.whole(shape)
    if len(boxes) > 1 or box.shape != shape:
        raise LayoutError(
            f"a local tensor of shape {shape}, {tensor.placements}, is the boxes {[str(b) for b in boxes]}",
            "keep matrices apart instead of stacking them, or publish each box by itself",
        )
    return box


def placements_of(tensor: DTensor) -> tuple[Placement, ...]:
    """The placements as tuples; an order of shards that the spec says beside them becomes strided shards."""
    spec = tensor._spec
    placements = tuple(tensor.placements)
    order = getattr(spec, "shard_order", None)
    if order is not None and order != spec.compute_default_shard_order(placements):
        placements = spec._convert_shard_order_to_StridedShard(order, placements, tensor.device_mesh)
    return from_torch(placements, tensor.ndim)
