"""Random models for the checks: transformers' own modules, or checkpoints of a model's shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from earl.models.spec import ModelSpec, spec_of

FAMILIES = ("llama", "qwen2", "qwen3")
# Deviation of weights; transformers' own.
DEVIATION = 0.02


def config_of(
    family: str,
    *,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    vocab: int,
    positions: int,
    tied: bool = False,
) -> dict[str, Any]:
    """config.json of a model of these sizes."""
    return {
        "model_type": family,
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "use_sliding_window": False,
        "dtype": "float32",
    }


def tiny_config(family: str = "llama", layers: int = 2, positions: int = 2048) -> dict[str, Any]:
    """A model whose heads are of the size that real ones have, and which is small otherwise."""
    return config_of(
        family, hidden=256, layers=layers, heads=8, kv_heads=2, head_dim=64, intermediate=512, vocab=1024,
        positions=positions,
    )  # fmt: skip


def billion_config(positions: int = 32_768) -> dict[str, Any]:
    """The shape of Qwen2.5-1.5B."""
    return config_of(
        "qwen2", hidden=1536, layers=28, heads=12, kv_heads=2, head_dim=128, intermediate=8960,
        vocab=151_936, positions=positions, tied=True,
    )  # fmt: skip


def half_billion_config(positions: int = 32_768) -> dict[str, Any]:
    """The shape of Qwen2.5-0.5B."""
    return config_of(
        "qwen2", hidden=896, layers=24, heads=14, kv_heads=2, head_dim=64, intermediate=4864,
        vocab=151_936, positions=positions, tied=True,
    )  # fmt: skip


def spoken(config: dict[str, Any], seed: int = 0) -> Any:
    """transformers' model of this configuration with random weights, in float32 on the processor."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    fields = {name: value for name, value in config.items() if name not in ("model_type", "architectures")}
    made = AutoConfig.for_model(config["model_type"], **fields)
    model = AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and biases too: a wrong one would not be noticed among ones and zeros.
            parameter.add_(torch.randn_like(parameter) * DEVIATION)
    return model


def write_checkpoint(
    directory: Path, config: dict[str, Any], dtype: str = "float32", device: str = "cpu"
) -> ModelSpec:
    """Writes a checkpoint with random weights, made on `device`; returns its shape."""
    from safetensors.torch import save_file

    spec = spec_of(config)
    torch.manual_seed(0)
    tensors = {}
    for name, shape in spec.shapes().items():
        values = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, device=device) * DEVIATION
        tensors[name] = values.to(getattr(torch, dtype)).cpu()
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps({**config, "dtype": dtype}), encoding="utf-8")
    return spec
