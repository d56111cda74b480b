"""The model that a complete run leaves: <run>/model-final, a directory that transformers reads."""

from __future__ import annotations

import logging
import shutil
from collections import deque
from pathlib import Path

import torch

from earl.config.run import RunConfig
from earl.models.weights import save_checkpoint
from services.trainer.checkpoint.reader import saved_tensors
from services.trainer.checkpoint.retention import marked_version
from services.trainer.model.sharded_policy import ShardedPolicy

log = logging.getLogger(__name__)


def write_final_model(run_dir: Path, config: RunConfig, policy: ShardedPolicy, newest: int) -> None:
    """Writes the model in `model.dtype`, gathered tensor by tensor. A collective.

    newest: the version that the policy has. It is written, or in a run with protected environments the best
    one, for that has kept them; nothing where no version has. An earlier model-final stays whole until this
    one is. Raises OSError, and CheckpointError for a best version whose checkpoint is damaged.
    """
    group, name, model = policy.mesh.group, config.model.weight_dtype, run_dir / "model"
    directory, dtype = run_dir / "checkpoints", getattr(torch, name)
    version = newest
    if any(entry.section.protected for entry in config.mixture):
        marked = marked_version(directory) if group.leads else 0
        version = int(group.max(torch.tensor([marked]))[0])
    if not version and group.leads:
        log.warning("model-final is not written: no version is known to keep the protected environments")
    if not (version and (version == newest or group.leads)):
        return
    if version == newest:
        tensors = ((name, tensor.to(dtype)) for name, tensor in policy.gathered())
    else:
        tensors = saved_tensors(directory, version, model, dtype)
    if not group.leads:
        # Every rank takes part in gathering each tensor; this one keeps none.
        deque(tensors, maxlen=0)
        return
    target = run_dir / "model-final"
    scratch = target.with_name(".model-final.new")
    shutil.rmtree(scratch, ignore_errors=True)
    save_checkpoint(scratch, model, tensors, dtype=name)
    shutil.rmtree(target, ignore_errors=True)
    scratch.rename(target)
