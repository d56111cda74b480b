"""The policy, cut over the ranks by FSDP2, and where each shard's box lies: what its DTensors say.

    meta device ─ fully_shard(block) … fully_shard(root) ─ to_empty ─ fill shard by shard

No rank ever holds the whole model: the checkpoint is read box by box. What is trained is kept in
float32 and computed in `dtype`. With adapters (earl.models.lora) the model itself is frozen, in the
dtype that it is published in. `Shards` are the local parts as plain tensors, which is what the
optimizer, the checkpoints and the published weights work on.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from earl.config.run import RunConfig
from earl.dispatch.dtensor import local_box, mesh_layout
from earl.dispatch.layout import Box
from earl.dispatch.mesh import MeshLayout
from earl.models.lora import Lora, adapt, adapters, initial, merged
from earl.models.module import Decoder
from earl.models.spec import ModelSpec
from earl.models.weights import Checkpoint
from services.trainer.group import Group
from services.trainer.manifest import AdapterEntry, hash_of

# FSDP2 warns of outputs that are views because an in-place change would lose its backward hook:
# nothing here changes the log-probs in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's part of one parameter: `local` is `box` of a tensor of `shape`.

    local shares memory with the module's parameter; it is empty where the cut leaves nothing. layout: of the
    parameter over the ranks of its mesh, on which this one stands at `place`, row-major.
    """

    name: str
    shape: tuple[int, ...]
    box: Box
    local: torch.Tensor
    parameter: nn.Parameter
    layout: MeshLayout
    place: int

    @property
    def gradient(self) -> torch.Tensor | None:
        """float32, shaped as local; summed over ranks and micro-batches."""
        grad = self.parameter.grad
        return grad.to_local() if isinstance(grad, DTensor) else grad


def lora_of(config: RunConfig) -> Lora | None:
    """The adapters that a run file asks for."""
    trainer = config.trainer
    if not trainer.lora_rank:
        return None
    return Lora(trainer.lora_rank, trainer.lora_alpha, tuple(sorted(set(trainer.lora_targets))))


class Policy:
    """A sharded decoder. Call it like the decoder.

    dtype: what it computes in. lora: train adapters of a frozen model that is held in `frozen_dtype`.
    shards: what is trained, float32. model_shards: the model's own parameters; the same without lora.
    """

    def __init__(
        self,
        spec: ModelSpec,
        group: Group,
        dtype: str,
        *,
        lora: Lora | None = None,
        frozen_dtype: str = "float32",
        activation_checkpointing: bool = False,
    ) -> None:
        with torch.device("meta"):
            self.decoder = Decoder(spec)
            if lora is not None:
                self.decoder.to(getattr(torch, frozen_dtype))
                adapt(self.decoder, lora)
        if activation_checkpointing:
            self.decoder.checkpoint_activations()
        precision = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype), reduce_dtype=torch.float32)
        # A single rank has nothing to free by resharding, only copies to repeat.
        reshard = group.size > 1
        for block in self.decoder.model.layers:
            fully_shard(block, mesh=group.mesh, mp_policy=precision, reshard_after_forward=reshard)
        fully_shard(self.decoder, mesh=group.mesh, mp_policy=precision)
        self.decoder.to_empty(device=group.device)
        for module in self._wrapped():
            if group.size > 1:
                # Losses are weighted over the global batch: gradients are sums, never averages.
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0)
        self.spec = spec
        self.lora = lora
        # What a checkpoint says of it; known once the model was read.
        self.adapter: AdapterEntry | None = None
        found = tuple(shards_of(self.decoder))
        by_name = {shard.name: shard for shard in found}
        self.shards = tuple(shard for shard in found if shard.parameter.requires_grad)
        self.model_shards = tuple(by_name[name] for name in spec.shapes())
        # Each weight that has an adapter: its A and its B.
        self._adapters = {weight: (by_name[a], by_name[b]) for weight, a, b in adapters(list(by_name))}

    @classmethod
    def of(cls, spec: ModelSpec, group: Group, config: RunConfig) -> Policy:
        """As the run file asks for."""
        trainer = config.trainer
        return cls(
            spec,
            group,
            trainer.dtype or config.model.dtype,
            lora=lora_of(config),
            frozen_dtype=config.model.dtype,
            activation_checkpointing=trainer.activation_checkpointing,
        )

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        lengths: list[int],
        source: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        shared: list[int] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs, entropy), each float32 [N], of targets int64 [N] predicted from rows `source`.

        tokens, positions: int64 [T], sequences of `lengths` packed end to end without what is `shared`.
        """
        return self.decoder(tokens, positions, lengths, targets, temperature, source, shared)

    @torch.no_grad()
    def fill(self, directory: Path, seed: int = 0) -> None:
        """Read this rank's boxes of a transformers checkpoint; adapters start from `seed`.

        Raises ModelNotFound, UnsupportedModel.
        """
        checkpoint = Checkpoint(directory)
        checkpoint.check(self.spec)
        for shard in self.model_shards:
            if shard.box.size:
                shard.local.copy_(checkpoint.read(shard.name, shard.box))
        if self.lora is None:
            return
        self.adapter = AdapterEntry(self.lora, hash_of(*sorted(directory.glob("*.safetensors"))))
        for shard in self.shards:
            if shard.box.size:
                whole = initial(shard.name, shard.shape, self.lora, seed)
                shard.local.view(shard.box.shape).copy_(whole[shard.box.slices()])

    @torch.no_grad()
    def weights(self) -> Iterator[tuple[Shard, torch.Tensor]]:
        """Each of model_shards and its values as they are to be used, adapters added; shaped as its box.

        One at a time; a collective: every rank must go through all of it.
        """
        for shard in self.model_shards:
            local = shard.local.view(shard.box.shape) if shard.box.size else shard.local
            pair = self._adapters.get(shard.name)
            if pair is not None:
                whole_a = _whole(pair[0].parameter)
                if shard.box.size:
                    # B is cut over ranks by rows as the weight is.
                    assert self.lora is not None
                    b = pair[1].local.view(pair[1].box.shape)
                    local = merged(local, whole_a, b, self.lora)
            yield shard, local

    @torch.no_grad()
    def gathered(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each of the model's tensors whole, adapters added, one at a time; a collective as weights()."""
        for shard in self.model_shards:
            whole = _whole(shard.parameter)
            pair = self._adapters.get(shard.name)
            if pair is not None:
                assert self.lora is not None
                whole = merged(whole, _whole(pair[0].parameter), _whole(pair[1].parameter), self.lora)
            yield shard.name, whole

    def clear_gradients(self) -> None:
        for parameter in self.decoder.parameters():
            parameter.grad = None

    def reshard(self) -> None:
        """Free what a forward pass without a backward pass left gathered: it would miss the next update."""
        for module in self._wrapped():
            module.reshard()

    def _wrapped(self) -> Sequence[FSDPModule]:
        return [module for module in self.decoder.modules() if isinstance(module, FSDPModule)]


def _whole(parameter: nn.Parameter) -> torch.Tensor:
    return cast(DTensor, parameter.detach()).full_tensor()


def shards_of(module: nn.Module) -> Iterator[Shard]:
    """This rank's shard of each parameter, on whatever mesh it lies; all of one that is no DTensor.

    Raises LayoutError where a rank's part is not one box.
    """
    for name, parameter in module.named_parameters():
        local = parameter.detach()
        shape = tuple(parameter.shape)
        box, layout, place = Box.whole(shape), MeshLayout(shape, (1,), (("replicate",),), ("0",)), 0
        if isinstance(local, DTensor):
            mesh = local.device_mesh
            layout = mesh_layout(local, [str(rank) for rank in mesh.mesh.flatten().tolist()])
            place = layout.owners.index(str(mesh.get_rank()))
            # Where a rank stands says who it is: layouts that differ in that alone are one class.
            layout = replace(layout, owners=tuple(map(str, range(len(layout.owners)))))
            box, local = local_box(local), local.to_local()
        yield Shard(name, shape, box, local, parameter, layout, place)
