"""The model of `earl bench publish`: a checkpoint of random weights, as trainer and engines read one."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from earl.models.spec import ModelSpec

DTYPE = "bfloat16"


def write_model(directory: Path, spec: ModelSpec) -> None:
    """Writes config.json and small random weights in bfloat16."""
    config = {
        "model_type": spec.family,
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate,
        "vocab_size": spec.vocab,
        "tie_word_embeddings": spec.tied,
        "max_position_embeddings": spec.max_positions,
    }
    (directory / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: (torch.randn(shape, generator=generator) * 0.02).to(getattr(torch, DTYPE))
        for name, shape in spec.shapes().items()
    }
    save_file(weights, str(directory / "model.safetensors"))
