"""Near ties: tokens that two ways of computing sample differently, because a draw lies at a boundary.

The draw of a position is the same for both, so they differ only where it lies next to a boundary between two
tokens of that row's distribution, by less than the noise of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from earl.models.parallel import TensorParallel
from earl.models.spec import load_spec
from services.rollout.engines.contract.sampling import uniforms
from services.rollout.engines.torch.batch import StepBatch
from services.rollout.engines.torch.model_runner import ModelRunner

# How far from a boundary a draw may be that arithmetic decides.
NEAR = {"float32": 1e-4, "bfloat16": 1e-2}


class Referee:
    """Says how near a draw was to a boundary, by the engine's own arithmetic for one sequence alone."""

    def __init__(self, model: Path, dtype: str, context: int, device: str = "cpu") -> None:
        self._runner = ModelRunner(
            load_spec(str(model)),
            TensorParallel(0, 1),
            slots=1,
            context=context,
            dtype=getattr(torch, dtype),
            device=device,
        )
        self._runner.load(str(model))

    def distance(self, ids: Sequence[int], tokens: tuple[int, int], temperature: float, seed: int) -> float:
        """The distance of the draw behind ids from the nearest boundary of either token's interval.

        temperature: above 0.
        """
        columns = ([0], [0], [len(ids)], [0], list(ids))
        logits = self._runner.forward(StepBatch(*(np.array(column, dtype=np.int64) for column in columns)))
        assert logits is not None
        return to_boundary(logits[0], len(ids), tokens, temperature, seed)


def to_boundary(
    logits: torch.Tensor, position: int, tokens: tuple[int, int], temperature: float, seed: int
) -> float:
    """The distance of the draw of `position` from the nearest boundary of either token's interval in the
    distribution of logits [V]."""
    cumulative = (logits.double() / temperature).softmax(-1).cumsum(-1).cpu().numpy()
    draw = float(uniforms(np.array([seed], dtype=np.uint64), np.array([position]))[0])
    edges = [cumulative[token] for token in tokens]
    edges += [cumulative[token - 1] if token else 0.0 for token in tokens]
    return float(min(abs(draw - edge) for edge in edges))


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first place at which two answers differ; None if one begins with the other."""
    for place, (token, theirs_token) in enumerate(zip(ours, theirs, strict=False)):
        if token != theirs_token:
            return place
    return None
