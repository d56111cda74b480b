"""Layouts of real DTensors, on torch's process group that exchanges nothing: FSDP2 over TP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from math import prod
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor._redistribute import redistribute_local_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from earl.dispatch.layout.box import Box
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.publish.dtensor import local_box, local_boxes
from earl.errors import LayoutError
from tests.support.layouts import layout_of, mesh_layout


@contextmanager
def mesh_of(rank: int, *shape: int) -> Iterator[DeviceMesh]:
    """Dimensions d0-RANK, d1-RANK: torch caches specs by mesh; equal names would bring another rank's."""
    names = tuple(f"d{i}-{rank}" for i in range(len(shape)))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=prod(shape))
    try:
        yield init_device_mesh("cpu", shape, mesh_dim_names=names)
    finally:
        dist.destroy_process_group()


def in_local_order(whole: torch.Tensor, boxes: tuple[Box, ...]) -> torch.Tensor:
    return torch.cat([whole.new_empty(0), *(whole[box.slices()].reshape(-1) for box in boxes)])


def check_every_rank(mesh_shape: tuple[int, ...], whole: torch.Tensor, make: Callable) -> MeshLayout:
    """`make(mesh, rank)` gives a rank's DTensor: each holds what its layout says. Returns the layout."""
    owners = [f"t{i}" for i in range(prod(mesh_shape))]
    layouts = []
    for rank, owner in enumerate(owners):
        with mesh_of(rank, *mesh_shape) as mesh:
            tensor = make(mesh, rank)
            boxes, layout, held = local_boxes(tensor), mesh_layout(tensor, owners), tensor.to_local()
        torch.testing.assert_close(held.reshape(-1), in_local_order(whole, boxes))
        mine = [shard.box for shard in layout_of(layout, "w", "float32").shards if shard.owner == owner]
        assert tuple(mine) == boxes
        layouts.append(layout)
    layout_of(layouts[0], "w", "float32").validate(replicas=True)
    assert all(layout == layouts[0] for layout in layouts)
    return layouts[0]


def weight_of(whole: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(whole.shape[1], whole.shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(whole)
    return layer


@pytest.mark.parametrize("style", [ColwiseParallel, RowwiseParallel])
@pytest.mark.parametrize("rows", [8, 7, 5, 3, 1])
@pytest.mark.parametrize("mesh_shape", [(2, 2), (4, 2), (2, 3), (2, 2, 2)])
def test_fsdp2_over_tensor_parallel(mesh_shape: tuple[int, ...], rows: int, style: type):
    """TP cuts first, FSDP2 each part: every rank holds one box, however uneven the lengths are."""
    whole = torch.arange(float(rows * 7)).reshape(rows, 7)

    def make(mesh: DeviceMesh, rank: int) -> DTensor:
        layer = weight_of(whole)
        *data, tensor = (f"d{i}-{rank}" for i in range(len(mesh_shape)))
        parallelize_module(layer, mesh[tensor], style(), src_data_rank=None)
        fully_shard(layer, mesh=mesh[tuple(data)] if len(data) > 1 else mesh[data[0]])
        weight = cast(DTensor, layer.weight.detach())
        assert local_box(weight).shape == weight.to_local().shape
        return weight

    layout = check_every_rank(mesh_shape, whole, make)
    *data, tensor = mesh_shape
    if style is ColwiseParallel:
        # Replicas, if there are any, then TP, then FSDP2.
        *replicas, shards = data
        assert layout.mesh_shape == (*replicas, tensor, shards)
        assert layout.placements == (*[("replicate",)] * len(replicas), ("shard", 0), ("shard", 0))


@pytest.mark.parametrize("rows", [24, 18, 13])
def test_a_fused_matrix(rows: int):
    """Three matrices in one, each split over TP: several boxes a rank. What FSDP2 makes of it is refused."""
    whole = torch.arange(float(rows * 2)).reshape(rows, 2)
    each = _StridedShard(0, split_factor=3)

    def make(mesh: DeviceMesh, rank: int) -> DTensor:
        tensor = mesh[f"d1-{rank}"]
        layer = weight_of(whole)
        local = each._split_tensor(whole, 2, with_padding=False)[0][tensor.get_local_rank()]
        shape = {"shape": whole.shape, "stride": whole.stride()}
        layer.weight = nn.Parameter(DTensor.from_local(local, tensor, [each], run_check=False, **shape))
        fully_shard(layer, mesh=mesh[f"d0-{rank}"])
        with pytest.raises(LayoutError, match="no order of the mesh"):
            local_boxes(cast(DTensor, layer.weight.detach()))
        fused = DTensor.from_local(local, mesh, [Replicate(), each], run_check=False, **shape)
        with pytest.raises(LayoutError, match="keep matrices apart"):
            local_box(fused)
        return fused

    layout = check_every_rank((2, 2), whole, make)
    assert layout.placements == (("replicate",), ("strided_shard", 0, 3))


@pytest.mark.parametrize(
    "factors, rank, says",
    [
        # No order of the dimensions splits so; and one that does, but not as `distribute_tensor` did it.
        ((2, 4, 1), 4, "no order of the mesh"),
        ((2, 4, 1), 1, "no order of the mesh"),
        ((4, 1, 1), 2, r"may give this rank \[3:4\] or \[4:5\]"),
    ],
)
def test_strided_shards_that_do_not_say_what_a_rank_holds_are_refused(
    factors: tuple[int, ...], rank: int, says: str
):
    with mesh_of(rank, 2, 2, 2) as mesh:
        placements = [_StridedShard(0, split_factor=n) for n in factors]
        tensor = distribute_tensor(torch.arange(5), mesh, placements, src_data_rank=None)
        assert tensor.to_local().numel() == 1
        with pytest.raises(LayoutError, match=says):
            local_boxes(tensor)


@pytest.mark.parametrize("rank", [0, 1, 4, 6])
def test_no_strided_shards_of_one_dimension_are_misread(rank: int):
    """Whatever the factors: the boxes are of the indices that torch gave this rank, or refused."""
    right = 0
    with mesh_of(rank, 2, 2, 2) as mesh:
        for length, factors in product((5, 7), product((0, 1, 2, 4), repeat=3)):
            placements = [_StridedShard(0, split_factor=n) if n else Shard(0) for n in factors]
            whole = torch.arange(length)
            tensor = distribute_tensor(whole, mesh, placements, src_data_rank=None)
            with suppress(LayoutError):
                boxes = local_boxes(tensor)
                torch.testing.assert_close(in_local_order(whole, boxes), tensor.to_local())
                right += 1
    assert right > 20


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0), (2, 1, 0)])
@pytest.mark.parametrize("rows", [24, 13, 5])
def test_shards_in_an_order_of_their_own(rows: int, order: tuple[int, ...]):
    """Each rank gets what torch's redistribution gives it when told in which order the mesh cuts."""
    whole = torch.arange(float(rows * 2)).reshape(rows, 2)

    def make(mesh: DeviceMesh, rank: int) -> DTensor:
        meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
        before = DTensorSpec(mesh, (Replicate(),) * 3, tensor_meta=meta)
        order_entries = (ShardOrderEntry(tensor_dim=0, mesh_dims=order),)
        after = DTensorSpec(mesh, (Shard(0),) * 3, tensor_meta=meta, shard_order=order_entries)
        return DTensor(redistribute_local_tensor(whole, before, after), after, requires_grad=False)

    mesh_shape = (2, 3, 2)
    layout = check_every_rank(mesh_shape, whole, make)
    assert layout.mesh_shape == tuple(mesh_shape[i] for i in order)
    assert layout.placements == (("shard", 0),) * 3


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("length", [3, 7, 8])
def test_uneven_shards_over_one_mesh_dimension(rank: int, length: int):
    whole = torch.arange(length * 2).reshape(length, 2)
    with mesh_of(rank, 4) as mesh:
        tensor = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
        boxes = local_boxes(tensor)
        held = tensor.to_local()
    assert sum(box.size for box in boxes) == held.numel()
    torch.testing.assert_close(held.reshape(-1), in_local_order(whole, boxes))


def test_what_no_rank_holds_is_refused():
    with mesh_of(0, 4) as mesh:
        partial = DTensor.from_local(torch.ones(4), mesh, [Partial()], run_check=False)
        with pytest.raises(LayoutError, match="reduce it first"):
            local_boxes(partial)
        padded = DTensor.from_local(
            torch.ones(3), mesh, [Shard(0)], run_check=False, shape=torch.Size([8]), stride=(1,)
        )
        with pytest.raises(LayoutError, match="local tensor of 3 elements"):
            local_boxes(padded)
        same = DTensor.from_local(torch.ones(4), mesh, [Replicate()], run_check=False)
        assert local_boxes(same) == (Box((0,), (4,)),)
