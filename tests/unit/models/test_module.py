"""Decoders equal transformers', packed, cut by tp, and written to disk."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen2Config, Qwen3Config

from earl.config.model import ModelConfig
from earl.errors import ConfigError, IllegalParallelism, ModelNotFound, UnsupportedModel
from earl.models import logprobs as logprobs_under_test
from earl.models.create import create_model
from earl.models.module import Decoder, initialise
from earl.models.packing import Packing
from earl.models.slices import tp_box
from earl.models.spec import load_spec, spec_of
from earl.models.tokenizer import Tokenizer
from earl.models.tp import check_tp, legal_tp
from earl.models.weights import Checkpoint, check_model, load_decoder, save_checkpoint

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS = {
    "llama": LlamaConfig(**SMALL),
    "llama-tied-bias": LlamaConfig(**SMALL, tie_word_embeddings=True, attention_bias=True),
    "llama3-rope": LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "linear-rope": LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    ),
    "qwen2": Qwen2Config(**SMALL),
    "qwen2-tied": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SMALL, head_dim=16),
    "qwen3-tied": Qwen3Config(**SMALL, head_dim=8, tie_word_embeddings=True),
}


def scratch(**values) -> ModelConfig:
    return ModelConfig.model_validate({"scratch": values})


def reference(name) -> Any:
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Deviation 0.1, and norms and biases that are not trivial: differences become visible.
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name, tmp_path):
    model = reference(name)
    model.save_pretrained(tmp_path)
    spec = load_spec(tmp_path)
    decoder = Decoder(spec)
    assert {n: tuple(p.shape) for n, p in decoder.named_parameters()} == spec.shapes()
    load_decoder(decoder, tmp_path)
    lengths = [9, 1, 23, 4, 23]
    sequences = [torch.randint(spec.vocab, (n,)) for n in lengths]
    tokens = torch.cat(sequences)
    positions = torch.cat([torch.arange(n) for n in lengths])
    with torch.no_grad():
        wanted = torch.cat([model(s[None]).logits[0] for s in sequences])
        hidden = decoder(tokens, positions, lengths)
        assert (decoder.logits(hidden) - wanted).abs().max() < 1e-4
        targets = torch.randint(spec.vocab, tokens.shape)
        rows = torch.arange(0, len(tokens), 3)
        logprobs, entropy = decoder(tokens, positions, torch.tensor(lengths), targets[rows], 0.7, rows)
    log_softmax = torch.log_softmax(wanted[rows] / 0.7, -1)
    assert torch.allclose(logprobs, log_softmax.gather(1, targets[rows, None])[:, 0], atol=1e-4)
    assert torch.allclose(entropy, -(log_softmax.exp() * log_softmax).sum(-1), atol=1e-4)


def test_gradients_equal_transformers():
    model = reference("qwen3")
    spec = spec_of(CONFIGS["qwen3"].to_dict())
    decoder = Decoder(spec)
    decoder.load_state_dict(model.state_dict())
    lengths = [5, 17, 3]
    sequences = [torch.randint(spec.vocab, (n,)) for n in lengths]
    targets = torch.randint(spec.vocab, (sum(lengths),))
    logits = torch.cat([model(s[None]).logits[0] for s in sequences])
    torch.nn.functional.cross_entropy(logits, targets).backward()
    positions = torch.cat([torch.arange(n) for n in lengths])
    logprobs, _ = decoder(torch.cat(sequences), positions, lengths, targets)
    (-logprobs.mean()).backward()
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None and torch.allclose(parameter.grad, theirs[name], atol=1e-5), name


def test_chunked_logprobs_equal_whole(monkeypatch):
    spec = spec_of(CONFIGS["llama"].to_dict())
    decoder = Decoder(spec)
    initialise(decoder, 3)
    tokens, targets = torch.randint(spec.vocab, (2, 40), generator=torch.Generator().manual_seed(5))
    heat = torch.linspace(0.5, 2.0, 40)

    def run():
        decoder.zero_grad()
        logprobs, entropy = decoder(tokens, torch.arange(40), [40], targets, heat)
        (logprobs.sum() + entropy.sum()).backward()
        gradient = decoder.model.embed_tokens.weight.grad
        assert gradient is not None
        return logprobs, entropy, gradient.clone()

    whole = run()
    monkeypatch.setattr(logprobs_under_test, "CHUNK_BYTES", 4 * spec.vocab * 7)
    for a, b in zip(whole, run(), strict=True):
        # A gradient adds up 40 tokens, in another order: float32 rounds it differently.
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_blocks_that_are_left_out_are_as_if_they_were_not_there():
    spec = spec_of({**CONFIGS["llama"].to_dict(), "num_hidden_layers": 3})
    decoder, shorter = Decoder(spec), Decoder(replace(spec, layers=2))
    initialise(decoder, 1)
    names = {name: name.replace("layers.1.", "layers.2.") for name in shorter.state_dict()}
    shorter.load_state_dict({name: decoder.get_parameter(source) for name, source in names.items()})
    tokens, positions = torch.arange(7) % spec.vocab, torch.arange(7)
    expected = shorter.forward_packed(tokens, positions, [7])
    assert torch.equal(decoder.forward_packed(tokens, positions, [7], blocks=[0, 2]), expected)
    assert not torch.equal(decoder.forward_packed(tokens, positions, [7]), expected)


def test_packing_goes_there_and_back():
    lengths = [3, 40, 1, 39, 2, 3]
    packing = Packing.of(lengths, torch.device("cpu"))
    assert packing.buckets == ((2, 40), (2, 3), (1, 2), (1, 1))
    assert packing.there[packing.back].tolist() == list(range(sum(lengths)))
    assert Packing.of([4, 4], torch.device("cpu")).identity


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None}, "dynamic"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"mlp_bias": True}, "mlp_bias"),
    ],
)
def test_what_is_not_supported_is_refused(change, words):
    with pytest.raises(UnsupportedModel, match=words):
        spec_of(CONFIGS["llama"].to_dict() | change)


def test_a_key_that_is_missing_is_named():
    config = CONFIGS["llama"].to_dict()
    del config["hidden_size"]
    with pytest.raises(ModelNotFound, match="hidden_size is missing"):
        spec_of(config)


def test_older_configuration_keys():
    config = CONFIGS["llama"].to_dict()
    del config["rope_parameters"]
    spec = spec_of(config | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}})
    assert (spec.rope.theta, spec.rope.kind, spec.rope.factor) == (5e5, "linear", 4.0)


def test_degrees_that_a_model_allows():
    spec = spec_of(CONFIGS["qwen2"].to_dict())
    assert legal_tp(spec) == [1, 2, 4]
    with pytest.raises(IllegalParallelism, match=r"tp 3 .*4 heads, 2 kv_heads.*use tp 1 or 2 or 4"):
        check_tp(spec, 3)
    assert legal_tp(replace(spec, intermediate=14)) == [1, 2]
    assert legal_tp(replace(spec, heads=12, kv_heads=4)) == [1, 2, 4, 12]


def test_a_tp_slice_is_read_alone(tmp_path):
    model = reference("llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    spec = check_spec = load_spec(tmp_path)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.check(check_spec)
    name = "model.layers.1.self_attn.o_proj.weight"
    box = tp_box(name, spec.shapes()[name], spec, 1, 2)
    assert torch.equal(checkpoint.read(name, box), model.state_dict()[name][:, 16:])


@pytest.mark.parametrize("missing", ["", "config.json", "model.safetensors", "tokenizer.json"])
def test_missing_files_are_named(missing, tmp_path):
    directory = create_model(tmp_path / "model", scratch(words=["a"]), 0)
    if missing:
        (directory / missing).unlink()
    else:
        directory = tmp_path / "elsewhere"
    with pytest.raises(ModelNotFound, match=missing or "does not exist") as caught:
        check_model(directory)
    assert caught.value.remedy


def test_a_missing_tensor_is_named(tmp_path):
    spec_dir = create_model(tmp_path / "model", scratch(words=["a"]), 0)
    source = Checkpoint(spec_dir)
    short = ((name, source.read(name)) for name in source.names if "layers.1.mlp.up" not in name)
    save_checkpoint(tmp_path / "short", spec_dir, short)
    with pytest.raises(ModelNotFound, match=r"layers\.1\.mlp\.up_proj\.weight"):
        check_model(tmp_path / "short")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_scratch_is_readable_by_transformers(family, tmp_path):
    words = ["x", "o", "[", "]", "4"]
    config = scratch(family=family, hidden_size=32, heads=4, kv_heads=2, words=words)
    directory = create_model(tmp_path / "model", config, seed=5)
    decoder = Decoder(load_spec(directory))
    load_decoder(decoder, directory)
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    ids = AutoTokenizer.from_pretrained(directory)("x o [4]")["input_ids"]
    assert ids == [1, 4, 5, 6, 8, 7] == Tokenizer.load(directory, config).encode_observation("x o [4]", True)
    with torch.no_grad():
        wanted = model(torch.tensor([ids])).logits[0]
        ours = decoder.logits(decoder(torch.tensor(ids), torch.arange(6), [6]))
    assert (ours - wanted).abs().max() < 1e-4
    before = (directory / "model.safetensors").read_bytes()
    assert create_model(directory, config, seed=6) == directory  # a resumed run keeps its model
    assert (directory / "model.safetensors").read_bytes() == before
    again = create_model(tmp_path / "again", config, seed=5)
    assert (again / "model.safetensors").read_bytes() == before


def test_a_path_is_linked_to(tmp_path):
    source = create_model(tmp_path / "source", scratch(words=["a"]), 0)
    config = ModelConfig(path=str(source))
    linked = create_model(tmp_path / "run" / "model", config, 0)
    assert linked.is_symlink() and linked.resolve() == source
    assert create_model(linked, config, 0) == linked
    with pytest.raises(ModelNotFound, match="nowhere"):
        create_model(tmp_path / "other", ModelConfig(path=str(tmp_path / "nowhere")), 0)
    assert not (tmp_path / "other").exists()


def test_impossible_scratch_sizes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="kv_heads = 3"):
        create_model(tmp_path / "m", scratch(kv_heads=3), 0)
    with pytest.raises(ConfigError, match="hidden_size = 100"):
        create_model(tmp_path / "m", scratch(hidden_size=100, heads=3, kv_heads=3), 0)


def test_saved_shards_are_readable(tmp_path, monkeypatch):
    monkeypatch.setattr("earl.models.weights.SHARD_BYTES", 30_000)
    directory = create_model(tmp_path / "model", scratch(words=["a"]), 0)
    source = Checkpoint(directory)
    tensors = {name: source.read(name) for name in source.names}
    save_checkpoint(tmp_path / "copy", directory, tensors.items())
    index = json.loads((tmp_path / "copy" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(tensors)
    check_model(tmp_path / "copy")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "copy")
    assert torch.equal(model.state_dict()["model.norm.weight"], tensors["model.norm.weight"])
