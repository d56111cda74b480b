"""The model of `earl bench publish`: a checkpoint of random weights, as trainer and engines read one."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.memory_model.engine import checkpoint_config
from earl.models.spec import ModelSpec

DTYPE = "bfloat16"


def write_model(directory: Path, spec: ModelSpec) -> None:
    """Writes config.json and small random weights in bfloat16."""
    (directory / "config.json").write_text(json.dumps(checkpoint_config(spec)))
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: (torch.randn(shape, generator=generator) * 0.02).to(getattr(torch, DTYPE))
        for name, shape in spec.shapes().items()
    }
    save_file(weights, str(directory / "model.safetensors"))
