"""Adapters: trained alone, published and exported merged, saved without the model, resumed bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from earl.config.model import ScratchModel
from earl.errors import CheckpointError
from earl.models.lora import LoraSpec, adapt, adapters, initial
from earl.models.module import Decoder
from earl.models.spec import load_spec
from earl.models.weights import Checkpoint, load_decoder
from earl.parallelism import Parallelism
from services.trainer.checkpoint import checkpoint
from services.trainer.checkpoint.manifest import FILE, Manifest
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.rank_mesh import RankMesh
from tests.support.policy import (
    alone,
    configuration,
    gathered,
    model_directory,
    progress_at,
    stepper_for,
    tiny_model,
    train,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
LORA = {"lora_rank": 3, "lora_alpha": 6.0, "lora_targets": ["q_proj", "o_proj", "up_proj", "down_proj"]}


group, model = alone, tiny_model


def test_training_starts_from_the_model_itself_and_changes_adapters_alone(group: Group, model: Path) -> None:
    stepper = stepper_for(group, model, configuration(**LORA))
    names = [shard.name for shard in stepper.policy.shards]
    assert len(names) == 2 * 2 * 4 and all(".lora_" in name for name in names)
    assert set(stepper.optimizer.moments) == set(names)
    source = Checkpoint(model)
    for name, tensor in gathered(stepper).items():
        assert torch.equal(tensor, source.read(name)), name
    train(stepper, 1)
    train(stepper, 2)
    changed = {
        name for name, tensor in gathered(stepper).items() if not torch.equal(tensor, source.read(name))
    }
    assert changed == {
        f"model.layers.{layer}.{part}.weight"
        for layer in range(2)
        for part in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
    }
    held = {shard.name: shard.local for shard in stepper.policy.model_shards}
    assert all(torch.equal(local, source.read(name)) for name, local in held.items())


def test_gradients_and_outputs_are_those_of_the_merged_model(group: Group, model: Path) -> None:
    """dL/dA and dL/dB follow by the chain rule from the dense gradient of W + alpha / rank B A."""
    spec = load_spec(model)
    lora = LoraSpec(3, 6.0, ("q_proj", "down_proj"))
    ours, dense = Decoder(spec), Decoder(spec)
    for decoder in (ours, dense):
        load_decoder(decoder, model)
    adapt(ours, lora)
    parameters = dict(ours.named_parameters())
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight, a, b in adapters(list(parameters)):
            parameters[a].copy_(initial(a, tuple(parameters[a].shape), lora, 7))
            parameters[b].normal_(0, 0.1, generator=generator)
            dense.get_parameter(weight).add_(lora.scale * parameters[b] @ parameters[a])
    tokens = torch.randint(spec.vocab, (30,), generator=generator)
    outputs = []
    for decoder in (ours, dense):
        logprobs, _ = decoder(tokens[:-1], torch.arange(29), [29], tokens[1:])
        logprobs.mean().backward()
        outputs.append(logprobs.detach())
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)
    for weight, a, b in adapters(list(parameters)):
        slope = dense.get_parameter(weight).grad
        assert slope is not None
        torch.testing.assert_close(
            parameters[a].grad, lora.scale * parameters[b].T @ slope, atol=1e-6, rtol=1e-4
        )
        torch.testing.assert_close(
            parameters[b].grad, lora.scale * slope @ parameters[a].T, atol=1e-6, rtol=1e-4
        )
    assert parameters["model.embed_tokens.weight"].grad is None


def test_what_is_published_is_merged(group: Group, model: Path) -> None:
    stepper = stepper_for(group, model, configuration(**LORA))
    train(stepper, 1)
    policy = stepper.policy
    trained = {shard.name: shard.local for shard in policy.shards}
    source = Checkpoint(model)
    whole = gathered(stepper)
    for shard, values in policy.weights():
        stem = shard.name.removesuffix("weight")
        expected = source.read(shard.name)
        if f"{stem}lora_a" in trained:
            expected = expected + 2.0 * trained[f"{stem}lora_b"] @ trained[f"{stem}lora_a"]
        torch.testing.assert_close(values, expected, atol=1e-6, rtol=1e-5)
        assert torch.equal(values, whole[shard.name])
    decoder = Decoder(policy.spec)
    decoder.load_state_dict(whole)
    tokens = torch.arange(12) % policy.spec.vocab
    inputs = (tokens[:-1], torch.arange(11), [11])
    with torch.no_grad():
        ours = policy(*inputs, torch.arange(11), tokens[1:], 1.0)[0]
        torch.testing.assert_close(ours, decoder(*inputs, tokens[1:])[0], atol=1e-5, rtol=1e-5)
    policy.reshard()


def test_a_checkpoint_holds_adapters_alone_and_resumes_bitwise(
    group: Group, model: Path, tmp_path: Path
) -> None:
    config = configuration(**LORA, minibatches=2)
    stepper = stepper_for(group, model, config)
    train(stepper, 1)
    path = checkpoint.save(tmp_path / "c", stepper, group, progress_at(stepper, 2), "hash", keep=2)
    manifest = Manifest.decode((path / FILE).read_bytes())
    assert set(manifest.tensors) == {shard.name for shard in stepper.policy.shards}
    assert manifest.adapter == stepper.policy.adapter is not None
    train(stepper, 2)
    resumed = stepper_for(group, model, config)
    found = checkpoint.latest(tmp_path / "c", resumed, group)
    assert found is not None
    checkpoint.load(*found, resumed)
    train(resumed, 2)
    expected = gathered(stepper)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in gathered(resumed).items())


@pytest.mark.parametrize("change", [{"lora_rank": 2}, {"lora_alpha": 1.0}, {"lora_rank": 0}, {}])
def test_other_adapters_or_another_model_are_refused(
    group: Group, model: Path, tmp_path: Path, change: dict
) -> None:
    stepper = stepper_for(group, model, configuration(**LORA))
    checkpoint.save(tmp_path / "c", stepper, group, progress_at(stepper, 2), "hash", keep=2)
    if not change:  # as large, but other weights
        model = model_directory(
            tmp_path / "other",
            ScratchModel(
                hidden_size=24, intermediate_size=20, layers=2, heads=2, kv_heads=1, embedding_std=0.5
            ),
        )
    other = stepper_for(group, model, configuration(**{**LORA, **change}))
    with pytest.raises(CheckpointError, match="restore trainer"):
        checkpoint.latest(tmp_path / "c", other, group)


def test_a_narrow_frozen_model_has_wide_adapters(group: Group, model: Path) -> None:
    policy = ShardedPolicy(
        load_spec(model),
        RankMesh(group, Parallelism(), load_spec(model)),
        "bfloat16",
        lora=LoraSpec(2, 4.0, ("v_proj",)),
        frozen_dtype="bfloat16",
        activation_checkpointing=True,
    )
    policy.fill(model)
    assert {shard.local.dtype for shard in policy.shards} == {torch.float32}
    assert {shard.local.dtype for shard in policy.model_shards} == {torch.bfloat16}
    tokens = torch.arange(12) % policy.spec.vocab
    logprobs, _ = policy(tokens[:-1], torch.arange(11), [11], torch.arange(11), tokens[1:], 1.0)
    logprobs.sum().backward()
    gradients = [shard.gradient for shard in policy.shards]
    assert all(gradient is not None and gradient.dtype is torch.float32 for gradient in gradients)
    assert any(gradient is not None and float(gradient.abs().max()) > 0 for gradient in gradients)
