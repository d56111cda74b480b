"""The policy, cut over the ranks: FSDP2 on a one-dimensional mesh, and where each shard's box lies.

    meta device ─ fully_shard(block) … fully_shard(root) ─ to_empty ─ fill shard by shard

No rank ever holds the whole model: the checkpoint is read box by box. Parameters are kept in
float32 and computed in the model's dtype. `Shards` are the local parts as plain tensors, which is
what the optimizer, the checkpoints and the published weights work on.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from earl.dispatch.layout import Box, shard_box
from earl.models.module import Decoder
from earl.models.spec import ModelSpec
from earl.models.weights import Checkpoint
from services.trainer.group import Group

# FSDP2 warns of outputs that are views because an in-place change would lose its backward hook:
# nothing here changes the log-probs in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's part of one parameter: `local` (float32) is `box` of a tensor of `shape`.

    local shares memory with the module's parameter; it is empty where the cut leaves nothing.
    """

    name: str
    shape: tuple[int, ...]
    box: Box
    local: torch.Tensor
    parameter: nn.Parameter

    @property
    def gradient(self) -> torch.Tensor | None:
        """float32, shaped as local; summed over ranks and micro-batches."""
        grad = self.parameter.grad
        return None if grad is None else cast(DTensor, grad).to_local()


class Policy:
    """A sharded decoder. Call it like the decoder; frozen: no gradients (a reference policy)."""

    def __init__(self, spec: ModelSpec, group: Group, dtype: str, *, frozen: bool = False) -> None:
        with torch.device("meta"):
            self.decoder = Decoder(spec)
        self.decoder.requires_grad_(not frozen)
        compute = getattr(torch, dtype)
        precision = MixedPrecisionPolicy(
            param_dtype=None if compute is torch.float32 else compute, reduce_dtype=torch.float32
        )
        # A single rank has nothing to free by resharding, only copies to repeat.
        reshard = group.size > 1
        for block in self.decoder.model.layers:
            fully_shard(block, mesh=group.mesh, mp_policy=precision, reshard_after_forward=reshard)
        fully_shard(self.decoder, mesh=group.mesh, mp_policy=precision)
        self.decoder.to_empty(device=group.device)
        for module in self.decoder.modules():
            if isinstance(module, FSDPModule):
                # Losses are weighted over the global batch: gradients are sums, never averages.
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(1.0)
        self.spec = spec
        self.shards = tuple(_shards(self.decoder, group))

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        lengths: list[int],
        source: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs, entropy), each float32 [N], of targets int64 [N] predicted from rows `source`.

        tokens, positions: int64 [T], sequences of `lengths` packed end to end.
        """
        return self.decoder(tokens, positions, lengths, targets, temperature, source)

    @torch.no_grad()
    def fill(self, directory: Path) -> None:
        """Read this rank's boxes of a transformers checkpoint. Raises ModelNotFound, UnsupportedModel."""
        checkpoint = Checkpoint(directory)
        checkpoint.check(self.spec)
        for shard in self.shards:
            if shard.box.size:
                shard.local.copy_(checkpoint.read(shard.name, shard.box))

    @torch.no_grad()
    def copy_from(self, other: Policy) -> None:
        """Take over the parameters of a policy that is cut alike."""
        for mine, theirs in zip(self.shards, other.shards, strict=True):
            mine.local.copy_(theirs.local)

    def clear_gradients(self) -> None:
        for parameter in self.decoder.parameters():
            parameter.grad = None

    def gathered(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each parameter whole (float32), one at a time; a collective: every rank must go through it."""
        for name, parameter in self.decoder.named_parameters():
            yield name, cast(DTensor, parameter.detach()).full_tensor()


def _shards(decoder: Decoder, group: Group) -> Iterator[Shard]:
    for name, parameter in decoder.named_parameters():
        shape = tuple(parameter.shape)
        box = shard_box(shape, 0, group.rank, group.size)
        local = cast(DTensor, parameter.detach()).to_local()
        if tuple(local.shape) != box.shape and local.numel() != box.size:
            raise AssertionError(f"{name}: FSDP2 holds {tuple(local.shape)}, the box is {box}")
        yield Shard(name, shape, box, local, parameter)
