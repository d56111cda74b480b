"""A decoder that scores sequences: transformers' ...ForSequenceClassification with one label.

    tokens ─► decoder ─► last hidden state of the last token ─ score.weight [1, hidden] ─► a number

It has no lm_head, and no bias at its head. The last token is the sequence's last one, whatever it is:
transformers, which pads, takes the last that is no pad token.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from earl.errors import UnsupportedModel
from earl.models.spec import ModelSpec, load_spec
from earl.models.weights import Checkpoint, check_tokenizer

SCORE = "score.weight"


def load_scorer_spec(directory: str | Path) -> ModelSpec:
    """The spec of a scorer's decoder, which has no output of its own. Raises as load_spec."""
    return replace(load_spec(directory), tied=True)


def check_scorer(directory: str | Path) -> ModelSpec:
    """The spec of a directory that has all a reward model needs.

    Raises ModelNotFound or UnsupportedModel, naming the file or tensor that is missing or wrong.
    """
    spec = load_scorer_spec(directory)
    checkpoint = Checkpoint(directory)
    checkpoint.check(spec)
    if SCORE not in checkpoint.names:
        raise UnsupportedModel(
            f"{directory} has no {SCORE}: it is no model that scores sequences",
            "give one that AutoModelForSequenceClassification saved with num_labels = 1",
        )
    if (shape := checkpoint.shape(SCORE)) != (1, spec.hidden):
        raise UnsupportedModel(
            f"{directory}: {SCORE} has shape {shape}, and a reward model has one label: (1, {spec.hidden})",
            "give one that was trained with num_labels = 1",
        )
    check_tokenizer(directory)
    return spec


def load_head(directory: str | Path, device: torch.device) -> torch.Tensor:
    """float32[hidden]: the weights of the head. Raises ModelNotFound."""
    return Checkpoint(directory).read(SCORE)[0].to(device=device, dtype=torch.float32)
