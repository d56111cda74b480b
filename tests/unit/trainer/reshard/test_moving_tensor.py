"""Memory of a tensor that moves: given back, taken again, and zero where FSDP2 pads."""

from __future__ import annotations

import torch

from earl.dispatch.layout.box import Box
from earl.dispatch.plan.reshard_plan import Reshard
from services.trainer.reshard.moving_tensor import MovingTensor, TensorMemory


def test_every_view_follows_memory_that_is_given_back_and_taken_again():
    held = torch.arange(6.0)
    memory = TensorMemory(lambda: held, Box((0, 3), (2, 6)), 4)
    assert memory.size_bytes == 24 and memory.values.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert memory.part(Box((1, 4), (2, 6))).tolist() == [[4, 5]]
    memory.free()
    assert held.untyped_storage().nbytes() == 0
    memory.take()
    memory.values.fill_(7.0)
    assert held.tolist() == [7.0] * 6


def test_what_pads_a_shard_is_zero_when_memory_is_taken_again():
    padded = torch.full((4,), 9.0)
    shard = padded[:3]
    memory = TensorMemory(lambda: shard, Box((0,), (3,)), 4)
    memory.free()
    memory.take()
    assert memory.size_bytes == 16 and padded.tolist() == [0.0] * 4


def test_memory_that_was_never_there_is_made_once():
    made: list[torch.Tensor] = []
    memory = TensorMemory(lambda: made[-1], Box((0,), (4,)), 4, lambda: made.append(torch.ones(4)))
    assert memory.size_bytes == 16 and not made
    memory.take()
    memory.free()
    memory.take()
    assert len(made) == 1 and memory.values.shape == (4,)


def test_the_way_back_exchanges_both_layouts():
    old, new = (TensorMemory(lambda: torch.zeros(4), Box((0,), (4,)), 4) for _ in range(2))
    there = MovingTensor(Reshard((4,), 4, (Box((0,), (4,)),), (Box((0,), (2,)),)), old, new)
    back = there.reversed()
    assert (back.old, back.new, back.item_bytes) == (new, old, 4)
    assert (back.reshard.before, back.reshard.after) == (there.reshard.after, there.reshard.before)


def test_a_tensor_is_in_place_where_both_layouts_have_the_same_memory():
    whole = Box((0,), (4,))
    values = torch.arange(4.0)
    old, same = TensorMemory(lambda: values, whole, 4), TensorMemory(lambda: values[:], whole, 4)
    other = TensorMemory(lambda: torch.arange(4.0), whole, 4)
    reshard = Reshard((4,), 4, (whole,), (whole,))
    assert MovingTensor(reshard, old, same).in_place and MovingTensor(reshard, old, same).reversed().in_place
    assert not MovingTensor(reshard, old, other).in_place
    nothing = TensorMemory(lambda: values[:0], Box((0,), (0,)), 4)
    made = TensorMemory(lambda: torch.empty(4, device="meta"), whole, 4, lambda: None)
    assert not MovingTensor(reshard, old, made).in_place
    assert not MovingTensor(reshard, nothing, TensorMemory(lambda: torch.zeros(0), nothing.box, 4)).in_place
