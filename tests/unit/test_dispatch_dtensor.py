"""Layouts of real DTensors, on torch's process group that exchanges nothing: FSDP2 over TP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from earl.dispatch.dtensor import local_boxes, mesh_layout
from earl.dispatch.layout import Box
from earl.errors import LayoutError

OWNERS = [f"t{i}" for i in range(4)]


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
    return torch.cat([whole[box.slices()].reshape(-1) for box in boxes])


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("style", [ColwiseParallel, RowwiseParallel])
def test_fsdp2_over_tensor_parallel(rank: int, style: type):
    whole = torch.arange(8.0 * 12).reshape(8, 12)
    with mesh_of(rank, 2, 2) as mesh:
        layer = nn.Linear(12, 8, bias=False)
        with torch.no_grad():
            layer.weight.copy_(whole)
        parallelize_module(layer, mesh[f"d1-{rank}"], style(), src_data_rank=None)
        fully_shard(layer, mesh=mesh[f"d0-{rank}"])
        weight = layer.weight.detach()
        assert isinstance(weight, DTensor)
        layout = mesh_layout(weight, OWNERS)
        boxes = local_boxes(weight)
        assert (layout.mesh_shape, layout.shape) == ((2, 2), (8, 12))
        if style is ColwiseParallel:
            assert layout.placements == (("strided_shard", 0, 2), ("shard", 0))
        held = weight.to_local().reshape(-1)
    torch.testing.assert_close(held, in_local_order(whole, boxes))
    shards = [shard.box for shard in layout.layout("w", "float32").shards if shard.owner == OWNERS[rank]]
    assert tuple(shards) == boxes


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("length", [3, 7, 8])
def test_uneven_shards_over_one_mesh_dimension(rank: int, length: int):
    whole = torch.arange(length * 2).reshape(length, 2)
    with mesh_of(rank, 4) as mesh:
        tensor = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
        boxes = local_boxes(tensor)
        held = tensor.to_local()
    assert sum(box.size for box in boxes) == held.numel()
    if boxes:
        torch.testing.assert_close(held.reshape(-1), in_local_order(whole, boxes))


def test_what_no_rank_holds_is_refused():
    with mesh_of(0, 4) as mesh:
        partial = DTensor.from_local(torch.ones(4), mesh, [Partial()], run_check=False)
        with pytest.raises(LayoutError, match="reduce it first"):
            mesh_layout(partial, OWNERS)
        padded = DTensor.from_local(
            torch.ones(3), mesh, [Shard(0)], run_check=False, shape=torch.Size([8]), stride=(1,)
        )
        with pytest.raises(LayoutError, match="local tensor of 3 elements"):
            local_boxes(padded)
        same = DTensor.from_local(torch.ones(4), mesh, [Replicate()], run_check=False)
        assert local_boxes(same) == (Box((0,), (4,)),)
