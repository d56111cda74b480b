"""Checkpoints that appear whole or not at all, and load on any number of ranks.

    checkpoints/.step-<n>.partial/   every rank: its shards of parameters and moments, fsynced (writer.py)
                                     rank 0: manifest.json with every file's checksum and boxes, fsynced
    checkpoints/step-<n>/            renamed; only then are older ones deleted

n is the policy version. What was torn or damaged is skipped with a warning that names it. With adapters
(earl.models.lora) the tensors are theirs alone: the model stays where it is, the manifest holds its hash.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from earl.dispatch.plan.boxes import plan
from earl.errors import CheckpointError, LayoutError
from services.trainer.checkpoint.manifest import ANOTHER, FILE, Manifest, TrainingProgress, fingerprint
from services.trainer.checkpoint.retention import checkpoints
from services.trainer.checkpoint.writer import CheckpointWriter, state_tensors
from services.trainer.model.adapters import hash_of
from services.trainer.model.sharded_policy import CRITIC
from services.trainer.ranks.process_group import Group
from services.trainer.step.step import Stepper

log = logging.getLogger(__name__)


def save(
    directory: Path,
    stepper: Stepper,
    group: Group,
    progress: TrainingProgress,
    config_hash: str,
    keep: int,
    held: Collection[int] = (),
) -> Path:
    """Writes checkpoint step-<version> below `directory`, and waits for it; the newest `keep` stay, and the
    versions in `held` (rank 0's counts). A collective.

    Raises CheckpointError when a rank could not write (disk full); the older ones are then intact.
    """
    writer = CheckpointWriter(directory, group, keep)
    writer.begin(stepper, progress, config_hash)
    written = writer.settle(held)
    assert written is not None
    return written.path


def latest(directory: Path, stepper: Stepper, group: Group) -> tuple[Path, Manifest] | None:
    """The newest checkpoint that is whole; None if there was never one. A collective.

    Raises CheckpointError when all are damaged, or when one belongs to another model.
    """
    skipped: list[str] = []
    for path in json.loads(group.broadcast(json.dumps([str(p) for p in checkpoints(directory)]).encode())):
        problem = ""
        manifest = None
        try:
            manifest = Manifest.decode((Path(path) / FILE).read_bytes())
            _verify(Path(path), manifest, group)
        except (OSError, CheckpointError) as error:
            problem = str(error)
        problems = [text.decode() for text in group.gather(problem.encode()) if text]
        if problems or manifest is None:
            skipped.append(path)
            log.warning("checkpoint %s is skipped: %s", path, problems[0] if problems else "unreadable")
            continue
        _check(Path(path), manifest, stepper)
        return Path(path), manifest
    if skipped:
        raise CheckpointError(
            f"no checkpoint is whole; damaged: {', '.join(skipped)}",
            "restore one of them, or remove them all to start from the beginning",
        )
    return None


def _check(path: Path, manifest: Manifest, stepper: Stepper) -> None:
    """Raises CheckpointError if the checkpoint is of another model, or of other adapters."""
    policy = stepper.policy
    if manifest.model != fingerprint(policy.spec):
        raise CheckpointError(
            f"checkpoint {path} belongs to another model than the run's",
            "give the run another name, or restore its model",
        )
    if manifest.adapter != policy.adapter:
        raise CheckpointError(
            f"checkpoint {path} holds {manifest.adapter or 'every parameter'}, the run trains "
            f"{policy.adapter or 'every parameter'}",
            "restore trainer.lora_rank, lora_alpha, lora_targets and the model that it started from",
        )


@torch.no_grad()
def load(path: Path, manifest: Manifest, stepper: Stepper) -> None:
    """Fills parameters, moments and counts from a checkpoint of any rank count. Raises CheckpointError."""
    files = {file.name: path / file.name for file in manifest.files}
    try:
        handles = {name: safe_open(file, framework="pt") for name, file in files.items()}
        for shard, prefix, local in state_tensors(stepper):
            if shard.name == CRITIC and CRITIC not in manifest.tensors:
                log.warning("%s has no critic: it starts from 0", path)
                local.zero_()
                continue
            if not shard.box.size:
                continue
            layout = manifest.layout(shard.name)
            if layout.shape != shard.shape:
                raise CheckpointError(
                    f"{path}: {shard.name} has shape {layout.shape}, the model {shard.shape}",
                    "it is another model's: give the run another name",
                )
            into = local.view(shard.box.shape)
            for copy in plan(layout, shard.box):
                piece = handles[layout.shards[copy.shard_index].owner].get_slice(prefix + shard.name)
                into[copy.target.slices()] = piece[copy.source.slices()].to(into.device)
    except (OSError, SafetensorError, LayoutError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}", "resume from another checkpoint") from error
    stepper.optimizer.updates = manifest.progress.updates


def _verify(path: Path, manifest: Manifest, group: Group) -> None:
    """Checks that every file has its size, and the content of this rank's share of them.

    Raises CheckpointError.
    """
    for index, file in enumerate(manifest.files):
        size_bytes = (path / file.name).stat().st_size
        if size_bytes != file.size_bytes:
            raise CheckpointError(f"{file.name} has {size_bytes} bytes of {file.size_bytes}", ANOTHER)
        if index % group.size == group.rank and hash_of(path / file.name) != file.xxh3:
            raise CheckpointError(f"{file.name} is damaged: its checksum differs", ANOTHER)
