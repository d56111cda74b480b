"""Copies a staged version into a rank's weights, straight out of shared memory, cast where dtypes differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from earl.dispatch.describe.dtypes import numpy_dtype
from services.rollout.engines.contract.mapped_tensor import as_tensor
from services.rollout.engines.contract.weight_staging import StagedCopy, StagedVersion


@torch.inference_mode()
def copy_staged(staged: StagedVersion, weights: Mapping[str, torch.Tensor]) -> None:
    """Fills the weights, which are contiguous and of the staged shapes, on whichever device. What is in them
    counts only once it was confirmed."""
    for arena, copies in staged.copies():
        arena.reading(_copy, arena.memory, copies, staged.dtypes, weights)


def _copy(
    memory: np.ndarray,
    copies: Iterable[StagedCopy],
    dtypes: Mapping[str, str],
    weights: Mapping[str, torch.Tensor],
) -> None:
    sources: dict[str, torch.Tensor] = {}
    for copy in copies:
        dtype = dtypes[copy.parameter]
        if dtype not in sources:
            sources[dtype] = as_tensor(memory).view(getattr(torch, dtype))
        item = numpy_dtype(dtype).itemsize
        shape = (copy.rows, copy.run // item)
        source = sources[dtype].as_strided(shape, (copy.stride // item, 1), copy.start // item)
        target = weights[copy.parameter]
        target.as_strided(shape, (copy.target_stride // item, 1), copy.offset // item).copy_(source)
