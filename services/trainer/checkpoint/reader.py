"""A checkpoint read whole, tensor by tensor, on one process: whatever the number of ranks that wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from earl.dispatch.layout.box import Box
from earl.dispatch.plan.boxes import plan
from earl.errors import CheckpointError, LayoutError
from earl.models.lora import adapters, merged
from earl.models.spec import load_spec
from earl.models.weights import Checkpoint
from services.trainer.checkpoint.manifest import ANOTHER, FILE, Manifest, fingerprint
from services.trainer.checkpoint.writer import PARAMETER
from services.trainer.model.adapters import hash_of


def model_tensors(model: Path, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Reads the tensors of a model's directory one by one, in this dtype."""
    base = Checkpoint(model)
    return ((name, base.read(name).to(dtype)) for name in load_spec(model).shapes())


def saved_tensors(
    directory: Path, version: int, model: Path, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Reads the tensors of a version's checkpoint below `directory` one by one, in this dtype.

    Version 1 is the model that the run began with, unless it has a checkpoint. Raises CheckpointError.
    """
    checkpoint = directory / f"step-{version}"
    if version == 1 and not checkpoint.is_dir():
        return model_tensors(model, dtype)
    return SavedModel(checkpoint, model).tensors(dtype)


class SavedModel:
    """The model in a checkpoint, read whole.

    checkpoint: its directory. model: the directory of the model that the run started from.

    Raises CheckpointError where the checkpoint is not whole, or of another model.
    """

    def __init__(self, checkpoint: Path, model: Path) -> None:
        self.path, self.model = checkpoint, model
        self.spec = load_spec(model)
        try:
            self.manifest = Manifest.decode((checkpoint / FILE).read_bytes())
            for file in self.manifest.files:
                path = checkpoint / file.name
                if hash_of(path) != file.xxh3:
                    raise CheckpointError(f"{path} is damaged: its checksum differs", ANOTHER)
            names = [file.name for file in self.manifest.files]
            self._files = {name: safe_open(checkpoint / name, framework="pt") for name in names}
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{checkpoint} cannot be read: {error}", "export another version"
            ) from error
        if self.manifest.model != fingerprint(self.spec):
            raise CheckpointError(f"{checkpoint} belongs to another model than {model}", "restore the model")
        adapter = self.manifest.adapter
        if adapter is not None and hash_of(*sorted(model.glob("*.safetensors"))) != adapter.base:
            raise CheckpointError(
                f"{checkpoint} holds adapters of other weights than those in {model}", "restore the model"
            )

    def read(self, name: str) -> torch.Tensor:
        """One tensor of the checkpoint, whole, float32. Raises CheckpointError."""
        layout = self.manifest.layout(name)
        whole = torch.empty(layout.shape)
        try:
            for copy in plan(layout, Box((0,) * len(layout.shape), layout.shape)):
                piece = self._files[layout.shards[copy.shard_index].owner].get_slice(PARAMETER + name)
                whole[copy.target.slices()] = piece[copy.source.slices()]
        except (SafetensorError, LayoutError) as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}", "export another version") from error
        return whole

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """The model's tensors by their transformers names, adapters added, one at a time."""
        pairs = {weight: (a, b) for weight, a, b in adapters(list(self.manifest.tensors))}
        base = Checkpoint(self.model)
        for name in self.spec.shapes():
            if self.manifest.adapter is None:
                whole = self.read(name)
            elif name in pairs:
                a, b = map(self.read, pairs[name])
                whole = merged(base.read(name), a, b, self.manifest.adapter.lora)
            else:
                whole = base.read(name)
            yield name, whole.to(dtype)

    def adapter_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The adapters alone, float32, by PEFT's names."""
        for weight, *pair in adapters(list(self.manifest.tensors)):
            for letter, name in zip("AB", pair, strict=True):
                yield f"base_model.model.{weight.removesuffix('weight')}lora_{letter}.weight", self.read(name)
