"""torch's DTensor in the words of the layout algebra: which boxes of a tensor a rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from earl.dispatch.layout.box import Box
from earl.dispatch.layout.placements import Placement, placement_boxes, shard_order
from earl.errors import LayoutError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def from_torch(placements: Sequence[Any], dimensions: int) -> tuple[Placement, ...]:
    """torch's placements of a tensor with that many dimensions as tuples.

    Raises LayoutError for Partial, whose values no rank holds, and for placements that are unknown here.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import Partial, _StridedShard

    tuples: list[Placement] = []
    for placement in placements:
        if isinstance(placement, Replicate):
            tuples.append(("replicate",))
        elif isinstance(placement, _StridedShard):
            tuples.append(("strided_shard", placement.dim % dimensions, int(placement.split_factor)))
        elif isinstance(placement, Shard):
            tuples.append(("shard", placement.dim % dimensions))
        elif isinstance(placement, Partial):
            raise LayoutError(
                f"placement {placement}: no rank holds the tensor's values, only terms of a sum",
                "reduce it first: tensor.redistribute(placements=[Replicate()]) or Shard(dim)",
            )
        else:
            raise LayoutError(f"placement {placement!r}", "use Shard, Replicate or _StridedShard")
    return tuple(tuples)


def local_boxes(tensor: DTensor) -> tuple[Box, ...]:
    """The boxes of this rank's local tensor, in the order of its rows; none off the mesh.

    Several only where a strided shard is of matrices stacked in one. Raises LayoutError, also where the
    placements do not determine which elements this rank holds.
    """
    coordinates = tensor.device_mesh.get_coordinate()
    if coordinates is None:
        return ()
    shape, mesh_shape = tuple(tensor.shape), tuple(tensor.device_mesh.shape)
    written = placements_of(tensor)
    order, placements = shard_order(mesh_shape, written)
    by_order = [(mesh_shape[i], coordinates[i]) for i in order]
    boxes = placement_boxes(shape, [n for n, _ in by_order], placements, [index for _, index in by_order])
    held = tensor.to_local().numel()
    if _size(boxes) != held:
        raise LayoutError(
            f"a local tensor of {held} elements where {tensor.placements} give {_text(boxes)}",
            "was it padded, or changed in place? publish boxes of your own",
        )
    if written == from_torch(tensor.placements, tensor.ndim):
        # The order is read out of strided shards. `distribute_tensor` takes them from the left instead: for
        # uneven lengths on three mesh dimensions that may be as many elements, but others.
        from_left = placement_boxes(shape, mesh_shape, written, coordinates)
        if from_left != boxes and _size(from_left) == held:
            raise LayoutError(
                f"{tensor.placements} of {shape} may give this rank {_text(boxes)} or {_text(from_left)}",
                "give the tensor a length that the mesh divides, or shard another dimension",
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
            f"a local tensor of shape {shape}, {tensor.placements}, is the boxes {_text(boxes)}",
            "keep matrices apart instead of stacking them, or publish each box by itself",
        )
    return box


def placements_of(tensor: DTensor) -> tuple[Placement, ...]:
    """The placements as tuples; a shard order that the spec names in addition becomes strided shards."""
    spec = tensor._spec
    placements = tuple(tensor.placements)
    order = getattr(spec, "shard_order", None)
    if order is not None and order != spec.compute_default_shard_order(placements):
        placements = spec._convert_shard_order_to_StridedShard(order, placements, tensor.device_mesh)
    return from_torch(placements, tensor.ndim)


def _size(boxes: Sequence[Box]) -> int:
    return sum(box.size for box in boxes)


def _text(boxes: Sequence[Box]) -> str:
    return " ".join(map(str, boxes)) or "nothing"
