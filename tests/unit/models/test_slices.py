"""Checks what a tensor-parallel rank's parameters are made of, against modules cut by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from earl.models.module import Decoder
from earl.models.parallel import TensorParallel
from earl.models.slices import FAMILIES, rank_parameters, tp_box
from earl.models.spec import FAMILIES as SUPPORTED
from earl.models.spec import ModelSpec
from earl.models.tp import legal_tp

SPECS = {
    "llama-tied": ModelSpec("llama", 32, 1, 8, 2, 4, 48, 29, tied=True),
    "llama-bias": ModelSpec("llama", 32, 1, 4, 1, 8, 48, 29, qkv_bias=True, o_bias=True),
    "qwen2": ModelSpec("qwen2", 32, 1, 4, 2, 8, 48, 29, qkv_bias=True),
    "qwen3": ModelSpec("qwen3", 32, 1, 4, 4, 16, 48, 29, qk_norm=True, tied=True),
}
CASES = [(name, tp) for name, spec in SPECS.items() for tp in legal_tp(spec)]


def published(spec: ModelSpec) -> dict[str, np.ndarray]:
    """Tensors whose elements are all different."""
    found, first = {}, 0
    for name, shape in spec.shapes().items():
        size = int(np.prod(shape))
        found[name] = np.arange(first, first + size).reshape(shape)
        first += size
    return found


def own_arrays(spec: ModelSpec, rank: int, tp: int, fused: bool) -> dict[str, np.ndarray]:
    """A rank's parameters put together as the table says, each element once."""
    whole, found = published(spec), {}
    for name, one in rank_parameters(spec, rank, tp, fused=fused).items():
        array = np.full(one.shape, -1)
        for part in one.parts:
            assert (array[part.target.slices()] == -1).all()
            array[part.target.slices()] = whole[part.source][part.box.slices()]
        assert (array >= 0).all()
        found[name] = array
        if one.same_as:
            assert (array == found[one.same_as]).all()
    return found


def test_every_family_has_its_table():
    assert set(FAMILIES) == set(SUPPORTED)


@pytest.mark.parametrize(("name", "tp"), CASES)
def test_heads_and_rows_are_dealt_whole(name: str, tp: int):
    spec = SPECS[name]
    whole = published(spec)
    heads, kv_heads, size = spec.heads // tp, max(1, spec.kv_heads // tp), spec.head_dim
    at = "model.layers.0."
    for rank in range(tp):
        own = own_arrays(spec, rank, tp, fused=False)
        kept = {name for name, one in rank_parameters(spec, rank, tp).items() if not one.same_as}
        assert kept == set(whole)
        query = whole[at + "self_attn.q_proj.weight"].reshape(spec.heads, size, -1)
        mine = range(rank * heads, (rank + 1) * heads)
        assert (own[at + "self_attn.q_proj.weight"].reshape(heads, size, -1) == query[list(mine)]).all()
        # The key-value heads that these queries attend to, and no other.
        attended = sorted({one * spec.kv_heads // spec.heads for one in mine})
        assert len(attended) == kv_heads
        for letter in "kv":
            key = whole[at + f"self_attn.{letter}_proj.weight"].reshape(spec.kv_heads, size, -1)
            assert (own[at + f"self_attn.{letter}_proj.weight"] == np.concatenate(key[attended])).all()
        columns = whole[at + "self_attn.o_proj.weight"].reshape(-1, spec.heads, size)[:, list(mine)]
        assert (own[at + "self_attn.o_proj.weight"].reshape(columns.shape) == columns).all()
        assert own[at + "mlp.down_proj.weight"].shape == (spec.hidden, spec.intermediate // tp)
        for replicated in ("model.embed_tokens.weight", at + "input_layernorm.weight"):
            assert (own[replicated] == whole[replicated]).all()


@pytest.mark.parametrize(("name", "tp"), CASES)
def test_fused_parameters_are_the_same_rows_stacked(name: str, tp: int):
    spec = SPECS[name]
    for rank in range(tp):
        plain, fused = (own_arrays(spec, rank, tp, fused=fused) for fused in (False, True))
        for one, array in fused.items():
            if "qkv_proj" in one:
                several = [plain[one.replace("qkv", letter)] for letter in "qkv"]
            elif "gate_up" in one:
                several = [plain[one.replace("gate_up", half)] for half in ("gate", "up")]
            else:
                several = [plain[one]]
            assert (array == np.concatenate(several)).all(), one
        assert ("lm_head.weight" in fused) and (len(fused) == len(plain) - 3 - 2 * spec.qkv_bias)


@pytest.mark.parametrize(("name", "tp"), CASES)
def test_a_decoder_has_these_parameters(name: str, tp: int):
    spec = SPECS[name]
    with torch.device("meta"):
        decoder = Decoder(spec, TensorParallel(tp - 1, tp))
    shapes = {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters()}
    own = rank_parameters(spec, tp - 1, tp)
    assert shapes == {name: one.shape for name, one in own.items() if not one.same_as}


def test_ranks_cover_every_tensor():
    spec = replace(SPECS["qwen2"], kv_heads=2)
    for tp in legal_tp(spec):
        for name, shape in spec.shapes().items():
            seen = np.zeros(shape, dtype=int)
            for rank in range(tp):
                seen[tp_box(name, shape, spec, rank, tp).slices()] += 1
            sharded = any(part in name for part in ("_proj.weight", "_proj.bias"))
            shared = max(1, tp // spec.kv_heads) if ".k_proj" in name or ".v_proj" in name else 1
            assert (seen == (shared if sharded else tp)).all(), name
