"""Layouts of published tensors in each parallelism, and the slot that is enough for all of them."""

from __future__ import annotations

from math import prod

import pytest

from earl.dispatch.describe.tensor_classes import length, spaced
from earl.models.slices import tp_box
from earl.models.spec import ModelSpec
from earl.models.tp import legal_parallelisms
from services.trainer.model.shard_layout import place_of, shard_layout
from services.trainer.publish.weight_slots import largest_slot_bytes

# Sizes that ranks share unevenly; four tp ranks share two key-value heads.
SPEC = ModelSpec("qwen2", 24, 2, 4, 2, 14, 44, 29, tied=True, qkv_bias=True)
ITEM_BYTES = {"float32": 4, "bfloat16": 2}


def held_shapes(tp: int, ranks: int, rank: int) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for name, shape in SPEC.shapes().items():
        runs = shard_layout(name, shape, SPEC, tp, ranks).runs(place_of(name, rank, tp, ranks))
        shapes[name] = tuple(map(length, runs))
    return shapes


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_ranks_hold_rows_of_their_tp_slice(ranks: int) -> None:
    for tp in {parallelism.tp for parallelism in legal_parallelisms(SPEC, ranks)}:
        for name, shape in SPEC.shapes().items():
            assert {place_of(name, rank, tp, ranks) for rank in range(ranks)} == set(range(ranks))
            in_block = name.startswith("model.layers.")
            for tensor in range(tp if in_block else 1):
                slice_ = tp_box(name, shape, SPEC, tensor, tp if in_block else 1).shape
                sharing = range(tensor, ranks, tp if in_block else 1)
                held = [held_shapes(tp, ranks, rank)[name] for rank in sharing]
                assert sum(rows for rows, *_ in held) == slice_[0]
                assert all(tuple(rest) == slice_[1:] for rows, *rest in held if rows)


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_slot_is_enough_for_the_parallelism_in_which_a_rank_holds_most(ranks: int, dtype: str) -> None:
    for rank in range(ranks):
        needed = [
            sum(spaced(ITEM_BYTES[dtype] * prod(shape)) for shape in held_shapes(p.tp, ranks, rank).values())
            for p in legal_parallelisms(SPEC, ranks)
        ]
        assert largest_slot_bytes(SPEC, rank, ranks, dtype) == max(needed)
        # Norms are whole on every tp rank: what fits one parallelism may not fit another.
        assert ranks == 1 or dtype == "bfloat16" or min(needed) < max(needed)
