"""The memory model's terms against what allocates: shapes, caches, saved tensors, constants; and its laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from earl.config.run import RunConfig
from earl.errors import ConfigError, IllegalParallelism
from earl.models import logprobs
from earl.models.lora import ATTENTION, MLP, adapt
from earl.models.lora import LoraSpec as Adapters
from earl.models.module import Block, Decoder, rope_frequencies, rope_table
from earl.models.packing import Packing
from earl.models.parallel import TensorParallel
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from services.rollout.engines.contract import filters, sampling
from services.rollout.engines.torch import attention, engine, kv_cache, linear, model_runner
from services.rollout.engines.torch.kv_allocator import KvAllocator
from services.rollout.engines.torch.model_runner import ModelRunner
from services.rollout.engines.torch.slot_table import SlotTable
from services.rollout.engines.vllm import core
from services.scheduler.memory import (
    MemoryParts,
    ModelNumbers,
    parts,
    predict,
    ranks_here,
    reference,
    rollout,
    trainer,
)
from services.scheduler.memory import model as model_module
from services.scheduler.memory.numbers import elements
from services.trainer.publish import weight_slots
from services.trainer.step import prefix_packing

SPECS = {
    "llama": ModelSpec("llama", 32, 2, 4, 4, 8, 48, 29, tied=True),
    "shared heads": ModelSpec("llama", 32, 2, 4, 1, 8, 48, 29, qkv_bias=True, o_bias=True),
    "qwen3": ModelSpec("qwen3", 32, 2, 4, 2, 16, 48, 29, qk_norm=True, tied=True),
}
MIB = 1 << 20


def configuration(**sections: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate({"name": "t", "environment": {"name": "e"}, **sections})


def test_constants_are_those_of_what_allocates() -> None:
    assert parts.CHUNK_BYTES == {"cpu": logprobs.CHUNK_BYTES, "cuda": logprobs.GPU_CHUNK_BYTES}
    assert trainer.SLOTS == weight_slots.SLOTS
    assert model_module.SHORTEST_SHARED == prefix_packing.SHORTEST_SHARED
    assert rollout.PACK_ELEMENTS == linear.PACK_ELEMENTS
    assert rollout.KEPT_PRODUCTS == linear.KEPT_PRODUCTS
    assert rollout.FIRST_POSITIONS == model_runner.FIRST_POSITIONS
    assert rollout.PAGE_BYTES == kv_cache.PAGE_BYTES
    assert rollout.ALIGNED == attention.ALIGNED
    assert rollout.STEP_TOKENS == engine.PREFILL_TOKENS == core.STEP_TOKENS
    assert rollout.BLOCK_TOKENS == core.BLOCK_TOKENS
    assert rollout.SAMPLE_BLOCK == sampling.BLOCK
    assert rollout.SORTED_ELEMENTS == filters.SORTED_ELEMENTS
    columns = SlotTable(1, 1)
    position = (columns.tokens, columns.logprobs, columns.versions)
    assert sum(column.itemsize for column in position) == rollout.COLUMN_BYTES


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("tp", [1, 2])
def test_numbers_are_those_of_a_rank(name: str, tp: int) -> None:
    spec = SPECS[name]
    with torch.device("meta"):
        decoder = Decoder(spec, TensorParallel(1, tp))
    numbers = ModelNumbers.of(spec, tp)
    assert numbers.elements() == sum(parameter.numel() for parameter in decoder.parameters())
    runner = ModelRunner(spec, TensorParallel(1, tp), slots=1, context=16)
    own = {weight.data_ptr(): weight.numel() for weight in runner.weights.values()}
    assert ModelNumbers.of(spec, tp, fused=True).elements() == sum(own.values())
    assert (numbers.heads, numbers.kv_heads) == (runner.heads, runner.kv_heads)


def test_fsdp_splits_rows_and_pads_the_last_rank() -> None:
    assert elements(((5, 3), (2,)), 2) == 3 * 3 + 1
    assert ModelNumbers.of(SPECS["llama"]).elements(3) * 3 >= SPECS["llama"].parameters


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tokens", [1, 100, 1000])
def test_kv_is_what_the_cache_commits(dtype: str, tokens: int) -> None:
    spec = SPECS["shared heads"]
    runner = ModelRunner(spec, TensorParallel(0, 2), slots=3, context=1024, dtype=getattr(torch, dtype))
    kv = KvAllocator(SlotTable(3, 1024), rows=runner.cache.rows, page=runner.cache.page_tokens)
    kv.budget.commit(torch.arange(2).numpy(), torch.full((2,), tokens).numpy())
    committed = int(kv.budget.committed.sum()) * runner.cache.token_bytes
    how = rollout.RolloutNumbers("cpu", True, True, 2, parts.ITEM_BYTES[dtype], 3, 1024, 0, 2, tokens)
    assert rollout.kv_bytes(ModelNumbers.of(spec, 2, fused=True), how) == committed


def saved_by(block: Block, spec: ModelSpec, lengths: list[int], dtype: torch.dtype) -> int:
    """Bytes of all storages that autograd keeps for a block's backward pass, parameters and tables aside."""
    x = torch.randn(sum(lengths), spec.hidden, dtype=dtype, requires_grad=True)
    tables = rope_table(rope_frequencies(spec.rope, spec.head_dim), torch.arange(len(x)), dtype)
    packing = Packing.of(lengths, x.device)
    left_out = {one.untyped_storage().data_ptr() for one in (*block.parameters(), *tables)}
    left_out |= {one.data_ptr() for one in (packing.there, packing.back, packing.again, packing.again_to)}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in left_out:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = block(x, *tables, packing)
    assert out.shape == x.shape
    return sum(kept.values())


def storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class LiveTensors(TorchDispatchMode):
    """The most bytes of tensors made within it that were there at once, after any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.most_bytes = 0
        self._there: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {
            leaf.untyped_storage()._cdata for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)
        }
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in given:
                storage = leaf.untyped_storage()
                self._there[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._there = {key: value for key, value in self._there.items() if not value[0].expired()}
        self.most_bytes = max(self.most_bytes, sum(size for _, size in self._there.values()))
        return result


@pytest.mark.parametrize("rows, vocab", [(3, 1000), (70, 49_152), (1, 300)])
def test_what_filters_sort_is_counted(rows: int, vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors alone: what sorting needs besides is not seen here."""
    monkeypatch.setattr(filters, "SORTED_ELEMENTS", 1 << 16)
    monkeypatch.setattr(rollout, "SORTED_ELEMENTS", 1 << 16)
    scores = torch.randn(rows, vocab)
    with LiveTensors() as live:
        filters.drop_improbable(scores, np.full(rows, vocab // 2), np.full(rows, 0.9), np.full(rows, 0.01))
    how = rollout.RolloutNumbers(
        "cpu", True, True, 1, 4, slots=rows, context=64, kv_tokens=0, sequences=rows, length=8, sorts=True
    )
    predicted = rollout.sorting_bytes(vocab, how)
    assert 0.25 * predicted < live.most_bytes <= predicted
    assert rollout.sorting_bytes(vocab, replace(how, sorts=False)) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("hidden", "inner", "vocab"), [(64, 256, 64), (256, 64, 64), (64, 64, 2048)])
def test_what_a_reference_pass_holds_at_once(dtype: str, hidden: int, inner: int, vocab: int) -> None:
    rows = 256
    spec = ModelSpec("llama", hidden, 2, 4, 2, 16, inner, vocab)
    decoder = Decoder(spec).to(getattr(torch, dtype)).requires_grad_(False)
    ids, targets = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows // 2, dtype=torch.int64)
    with torch.no_grad(), LiveTensors() as live:
        states = decoder.forward_packed(ids, torch.arange(rows), [rows])
        decoder.token_logprobs(states[: rows // 2].clone(), targets, 1.0)
    how = reference.ReferenceNumbers(
        device="cpu", item_bytes=parts.ITEM_BYTES[dtype], rows=rows, trained_rows=rows // 2, padded=rows,
        moved=False,
    )  # fmt: skip
    model = ModelNumbers.of(spec)
    predicted = reference.reference_memory(model, how).total_bytes - how.item_bytes * model.elements()
    assert predicted == pytest.approx(live.most_bytes, rel=0.1)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("lengths", [[64], [64, 63]])
@pytest.mark.parametrize("rank", [0, 8])
def test_saved_activations_are_what_autograd_keeps(name: str, lengths: list[int], rank: int) -> None:
    spec = SPECS[name]
    decoder = Decoder(spec)
    lora = None
    if rank:
        adapt(decoder, Adapters(rank, 8.0, (*ATTENTION, *MLP)))
        lora = trainer.LoraShape(rank, len((*ATTENTION, *MLP)), ((rank, 1),))
    rows = sum(lengths)
    padded = len(lengths) * max(lengths)
    how = trainer.TrainerNumbers(
        device="cpu",
        dp=1,
        ranks=1,
        cp=1,
        item_bytes=4,
        model_bytes=4,
        rows=rows,
        trained_rows=rows,
        padded=padded,
        moved=len(lengths) > 1,
        accumulates=False,
        checkpointed=False,
        entropy=False,
        lora=lora,
    )
    block = decoder.model.layers[0]
    assert isinstance(block, Block)
    kept = saved_by(block, spec, lengths, torch.float32)
    assert trainer.saved_bytes(ModelNumbers.of(spec), how) == pytest.approx(kept, rel=0.03)


def test_what_published_versions_take() -> None:
    spec, config = SPECS["llama"], configuration(model={"dtype": "bfloat16"})
    generating = predict("rollout", config, spec, Parallelism(1), 100, 1)
    assert generating.staging == 0
    training = predict("trainer", config, spec, Parallelism(1), 100, 1)
    assert training.staging == weight_slots.SLOTS * 2 * spec.parameters
    assert training.optimizer == 2 * 4 * spec.parameters
    changing = configuration(model={"dtype": "bfloat16"}, data_plane={"changes_fraction": 0.25})
    training = predict("trainer", changing, spec, Parallelism(1), 100, 1)
    assert training.staging == int(2.5 * spec.parameters) * weight_slots.SLOTS


BIG = ModelSpec("llama", 512, 8, 8, 4, 64, 1536, 16_384, max_positions=1 << 20)


def test_matrices_that_onednn_does_not_take_are_there_once() -> None:
    spec = ModelSpec("llama", 512, 2, 4, 4, 128, 1024, 512)
    for dtype, packs, copies in (("bfloat16", False, 1), ("bfloat16", True, 2), ("float32", False, 2)):
        config = configuration(rollout={"dtype": dtype, "device": "cpu"})
        taken = predict("rollout", config, spec, Parallelism(), 64, 1, packs_bfloat16=packs)
        weights = spec.size_bytes(dtype)
        products = rollout.KEPT_PRODUCTS * rollout.PRODUCT_BYTES if packs else 0
        assert copies * weights <= taken.weights - products < (copies + 0.6) * weights


STAGES = st.sampled_from(["rollout", "trainer", "reference"])
LAYOUTS = st.sampled_from(
    ["dp=1", "dp=2", "tp=2", "tp=4", "tp=8", "dp=4,tp=2", "cp=2", "dp=2,tp=2,cp=2"]
).map(Parallelism.parse)
DEVICES = st.sampled_from(["cpu", "cuda"])
BINARY = st.booleans()


@st.composite
def configurations(draw: st.DrawFn) -> RunConfig:
    return configuration(
        rollout={
            "max_sequences": 512,
            "max_context_tokens": 65_536,
            "kv_tokens": draw(st.sampled_from([0, 65_536])),
        },
        trainer={
            "activation_checkpointing": draw(BINARY),
            "lora_rank": draw(st.sampled_from([0, 8])),
            "minibatches": draw(st.sampled_from([1, 4])),
            "entropy_coefficient": draw(st.sampled_from([0.0, 0.1])),
        },
    )  # fmt: skip


@settings(max_examples=200)
@given(
    STAGES,
    configurations(),
    LAYOUTS,
    DEVICES,
    st.integers(1, 60_000),
    st.integers(1, 500),
    st.integers(0, 5000),
)
def test_longer_and_more_never_takes_less(stage, config, layout, device, tokens, sequences, more) -> None:
    def total(context: int, concurrency: int) -> int:
        found = predict(stage, config, BIG, layout, context, concurrency, device=device)
        assert all(part >= 0 for part in found.parts().values())
        assert found.total_bytes == sum(found.parts().values())
        return found.total_bytes

    here = total(tokens, sequences)
    assert total(tokens + more, sequences) >= here
    assert total(tokens, sequences + more) >= here


def test_every_way_to_save_memory_saves_it() -> None:
    def total(stage: str, layout: str, device: Any = "cuda", **sections: dict[str, Any]) -> int:
        config = configuration(rollout={"max_context_tokens": 8192}, **sections)
        return predict(stage, config, BIG, Parallelism.parse(layout), 8192, 64, device=device).total_bytes

    for device in ("cpu", "cuda"):
        trained = total("trainer", "dp=1", device)
        assert total("trainer", "dp=1", device, trainer={"activation_checkpointing": True}) < trained
        assert total("trainer", "dp=1", device, trainer={"lora_rank": 8}) < trained
        assert total("trainer", "tp=2", device) < trained
        assert total("rollout", "tp=2", device) < total("rollout", "tp=1", device)
        assert total("reference", "tp=2", device) < total("reference", "tp=1", device)
    assert total("trainer", "dp=4") < total("trainer", "dp=1")


def test_a_shared_beginning_is_computed_once() -> None:
    config = configuration()
    alone = predict("trainer", config, BIG, Parallelism(1), 2048, 8, shared_tokens=0)
    shared = predict("trainer", config, BIG, Parallelism(1), 2048, 8, shared_tokens=1024)
    assert shared.activations < alone.activations
    off = configuration(trainer={"share_prefixes": False})
    assert predict("trainer", off, BIG, Parallelism(1), 2048, 8, shared_tokens=1024) == replace(
        predict("trainer", off, BIG, Parallelism(1), 2048, 8)
    )


def test_a_bound_cache_takes_no_more_than_its_bound() -> None:
    config = configuration(rollout={"kv_tokens": 4096, "max_sequences": 64, "max_context_tokens": 4096})
    token_bytes = 2 * 4 * 64 * 4 * BIG.layers
    for device in ("cpu", "cuda"):
        found = predict("rollout", config, BIG, Parallelism(1), 4096, 64, device=device)
        bookkeeping = rollout.COLUMN_BYTES * 64 * 4096 if device == "cpu" else 0
        assert found.kv - bookkeeping <= token_bytes * (4096 + 64 * 16)
    few = predict("rollout", config, BIG, Parallelism(1), 64, 1, device="cuda")
    assert few.kv == token_bytes * 4096  # allocated whole


def test_fraction_and_base() -> None:
    memory = MemoryParts("update", weights=3, optimizer=5).with_base(8)
    assert memory.total_bytes == 16 and memory.fraction(32) == 0.5
    assert memory.parts()["base"] == 8
    with pytest.raises(ConfigError, match="0 bytes"):
        memory.fraction(0)


def test_ranks_that_share_a_machine() -> None:
    config = configuration(rollout={"workers": 2, "engines": 3, "tp": 2}, trainer={"ranks": 2})
    assert ranks_here(config) == 14
    with_reference = configuration(trainer={"kl_coefficient": 0.1}, reference={"dp": 2, "tp": 2})
    assert ranks_here(with_reference) == 1 + 1 + 4


def test_what_cannot_be_predicted_is_refused() -> None:
    config = configuration()
    with pytest.raises(ConfigError, match="'value'"):
        predict("value", config, BIG, Parallelism(1), 10, 1)
    with pytest.raises(ConfigError, match="0 tokens"):
        predict("trainer", config, BIG, Parallelism(1), 0, 1)
    with pytest.raises(IllegalParallelism):
        predict("rollout", config, BIG, Parallelism(1, 3), 10, 1)
