"""The cached forward pass equals the packed one, and weights are used wholly or not at all."""

import os

import numpy as np
import pytest
import torch

from earl.errors import IllegalParallelism, WeightsIncomplete
from earl.models.module import Decoder, initialise
from earl.models.parallel import TensorParallel
from earl.models.spec import ModelSpec
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.torch import attention, model_runner, ranks
from services.rollout.engines.torch.batch import StepBatch
from services.rollout.engines.torch.engine import TorchEngine
from services.rollout.engines.torch.linear import KEPT_PRODUCTS
from services.rollout.engines.torch.model_runner import ModelRunner
from services.rollout.engines.torch.ranks import EngineRank, Followers
from tests.support import threads
from tests.support.staged import ArrayStager, StagedArrays, give_stager

SPECS = {
    "llama": ModelSpec("llama", 32, 2, 4, 4, 8, 48, 29, tied=True),
    "llama-gqa-bias": ModelSpec("llama", 32, 2, 4, 1, 8, 48, 29, qkv_bias=True, o_bias=True),
    "qwen2": ModelSpec("qwen2", 32, 2, 4, 2, 8, 48, 29, qkv_bias=True),
    "qwen3": ModelSpec("qwen3", 32, 2, 4, 2, 16, 48, 29, qk_norm=True, tied=True),
}


one_thread = threads.one_thread
VARIABLE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def models(name: str, slots: int, dtype: torch.dtype = torch.float32) -> tuple[Decoder, ModelRunner]:
    decoder = Decoder(SPECS[name])
    initialise(decoder, 1)
    torch.manual_seed(2)
    runner = ModelRunner(SPECS[name], TensorParallel(), slots=slots, context=48, dtype=dtype)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    published = dict(decoder.named_parameters())
    runner.fill(lambda name, box: published[name][box.slices()])
    return decoder, runner


def packed_logits(decoder: Decoder, tokens: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        hidden = decoder.forward_packed(torch.from_numpy(tokens), torch.arange(len(tokens)), [len(tokens)])
        return decoder.logits(hidden)[-1]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("view", [0.0, 0.5, 2.0])
def test_any_batching_equals_the_packed_forward(name, view, monkeypatch):
    # 0: always a view of the cache, 2: always a gather.
    monkeypatch.setattr(attention, "VIEW_FRACTION", view)
    monkeypatch.setattr(attention, "MASK_ELEMENTS", 500)
    monkeypatch.setattr(attention, "ALONE_TOKENS", 12)
    decoder, runner = models(name, slots=7)
    rng = np.random.default_rng(0)
    sequences = rng.integers(0, 29, (7, 48))
    done = np.zeros(7, dtype=np.int64)
    while (done < 48).any():
        slots = rng.permutation(np.flatnonzero(done < 48))
        slots = slots[: rng.integers(1, len(slots) + 1)]
        counts = np.minimum(rng.choice([1, 1, 2, 3, 17], len(slots)), 48 - done[slots])
        tokens = np.concatenate(
            [sequences[s, done[s] : done[s] + c] for s, c in zip(slots, counts, strict=True)]
        )
        # Any of the last tokens may be drafts: they are computed alike, and have logits of their own.
        drafts = np.minimum(counts - 1, rng.integers(0, 4, len(slots)))
        logits = runner.forward(StepBatch(slots, done[slots], counts, drafts, tokens))
        assert logits is not None and len(logits) == len(slots) + drafts.sum()
        done[slots] += counts
        row = 0
        for slot, drafted in zip(slots, drafts, strict=True):
            for end in range(done[slot] - drafted, done[slot] + 1):
                wanted = packed_logits(decoder, sequences[slot, :end])
                assert (logits[row] - wanted).abs().max() < 1e-4
                row += 1


def test_bfloat16_is_close():
    decoder, runner = models("qwen3", slots=2, dtype=torch.bfloat16)
    tokens = np.random.default_rng(0).integers(0, 29, 20)
    logits = runner.forward(StepBatch(np.array([1]), np.array([0]), np.array([20]), np.array([0]), tokens))
    assert logits is not None and logits.dtype == torch.bfloat16
    wanted = packed_logits(decoder, tokens)
    assert (logits[0].float() - wanted).abs().max() < 0.05 * wanted.abs().max()


def test_heads_must_divide():
    with pytest.raises(IllegalParallelism, match="tp 3"):
        ModelRunner(SPECS["qwen2"], TensorParallel(0, 3), slots=1, context=8)


def test_tables_of_positions_grow_with_what_is_reached(monkeypatch: pytest.MonkeyPatch):
    tokens = np.random.default_rng(0).integers(0, 29, 40)
    logits: list[torch.Tensor] = []
    for first in (48, 8):
        monkeypatch.setattr(model_runner, "FIRST_POSITIONS", first)
        _, runner = models("llama", slots=2)
        assert len(runner._cosine) == first
        for start, stop in ((0, 5), (5, 12), (12, 40)):
            chunk = StepBatch(
                np.array([0]), np.array([start]), np.array([stop - start]), np.array([0]), tokens[start:stop]
            )
            last = runner.forward(chunk)
        assert last is not None
        logits.append(last)
    # 8, 16, and then what is needed, which is more than twice as many.
    assert torch.equal(*logits) and len(runner._cosine) == 40


def test_what_is_kept_compiled_is_bounded_before_a_model_is_read(monkeypatch: pytest.MonkeyPatch):
    class Reached(Exception):
        """The rank reads its model."""

    def read(directory: str):
        raise Reached(os.environ.get(VARIABLE))

    monkeypatch.setenv(VARIABLE, "none")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(ranks, "settle_card", lambda: None)
    monkeypatch.setattr(ranks, "load_spec", read)
    with pytest.raises(Reached, match=f"^{KEPT_PRODUCTS}$"):
        EngineRank(wire.Start(EngineSpec(name="unit", model_dir="", threads=1), 0, ""))


@pytest.mark.parametrize("failure", ["overwritten", "shape"])
def test_weights_applied_in_part_are_never_used(failure: str):
    """A version whose owner wrote over it meanwhile, or one that does not fit half way through."""
    _, runner = models("llama", slots=2)
    rank = EngineRank.__new__(EngineRank)
    rank.runner = runner
    good = {name: tensor.numpy().copy() for name, tensor in runner.weights.items()}
    bad = good | {"model.norm.weight": np.zeros(1 << 20, np.float32)} if failure == "shape" else good
    first = StagedArrays(bad, overwritten=failure == "overwritten")
    give_stager(rank, ArrayStager({1: first, 2: StagedArrays(good)}))
    spec = EngineSpec(name="unit", model_dir="", max_sequences=2, max_context_tokens=48)
    engine = TorchEngine(spec, rank, Followers([]))

    def request(name: str) -> GenerateRequest:
        return GenerateRequest(request_id=name, ids=[1, 2], max_new_tokens=9)

    engine.submit(request("running"), stream=False)
    engine.step()
    engine.submit(request("waiting"), stream=False)
    with pytest.raises(WeightsIncomplete, match="version 1"):
        engine.commit(1)
    engine.submit(request("later"), stream=False)
    assert [type(reply).__name__ for reply in engine.outbox] == ["RequestRefused"] * 3
    assert not engine.has_work
    engine.commit(2)
    engine.submit(request("after"), stream=False)
    while engine.has_work:
        engine.step()
    last = engine.outbox[-1]
    assert getattr(last, "versions", None) == [2] * 9
