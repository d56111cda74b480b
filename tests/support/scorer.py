"""A reward model with random weights, in the form in which transformers saves a sequence classifier."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from earl.config.model import ScratchModel
from earl.models.create import write_scratch
from tests.support.runs import WORDS

# Of other sizes than the policy in every dimension but the vocabulary.
SCORER = ScratchModel(
    hidden_size=48, intermediate_size=96, layers=2, heads=6, kv_heads=2, max_positions=128, embedding_std=0.5,
    words=WORDS,
)  # fmt: skip


def write_scorer(directory: Path, sizes: ScratchModel = SCORER, head: torch.Tensor | None = None) -> Path:
    """Writes a classifier below `directory`; returns where. head: [labels, hidden]; None: random, one."""
    path = directory / "scorer"
    write_scratch(path, sizes, 5, "float32")
    if head is None:
        head = torch.randn(1, sizes.hidden_size, generator=torch.Generator().manual_seed(3))
    tensors = load_file(path / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    save_file({**tensors, "score.weight": head}, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (architecture,) = config["architectures"]
    config["architectures"] = [architecture.replace("CausalLM", "SequenceClassification")]
    config["id2label"] = {str(number): f"LABEL_{number}" for number in range(len(head))}
    config["label2id"] = {label: int(number) for number, label in config["id2label"].items()}
    (path / "config.json").write_text(json.dumps(config))
    return path
