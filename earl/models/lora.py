"""Low-rank adapters (Hu et al., 2106.09685): y = W x + alpha / rank · B A x, with W frozen.

    <linear>.weight  [out, in]    as in the checkpoint
    <linear>.lora_a  [rank, in]   normal, deviation 1 / rank
    <linear>.lora_b  [out, rank]  zero: training starts from the model itself

The model's own names stay; a decoder with its adapters added in (`merged`) has those alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from earl.models.module import Decoder
from earl.models.parallel import ColumnLinear, RowLinear, TensorParallel, enter

A, B = "lora_a", "lora_b"
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Adapters of a model. alpha: their scale is alpha / rank. targets: a block's linears that have one."""

    rank: int
    alpha: float
    targets: tuple[str, ...]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class _Adapted(nn.Linear):
    """A linear layer with the parameters of another one and space for an adapter's (float32)."""

    def __init__(self, linear: nn.Linear, lora: LoraSpec) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = lora.scale
        self.lora_a = nn.Parameter(torch.empty(lora.rank, self.in_features, device=linear.weight.device))
        self.lora_b = nn.Parameter(torch.empty(self.out_features, lora.rank, device=linear.weight.device))


class LoraColumn(_Adapted, ColumnLinear):
    """A frozen column-parallel layer and its adapter: B is sharded like the weight, A is replicated."""

    def __init__(self, linear: ColumnLinear, lora: LoraSpec, tp: TensorParallel) -> None:
        super().__init__(linear, lora)
        self.tp, self.replicas = tp, linear.replicas

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        inner = F.linear(input, enter(self.lora_a, self.tp))
        b = enter(self.lora_b, self.replicas)
        return torch.addmm(super().forward(input), inner, b.t(), alpha=self.scale)


class LoraRow(_Adapted, RowLinear):
    """A frozen row-parallel layer and its adapter: A is sharded like the weight, B is replicated."""

    def __init__(self, linear: RowLinear, lora: LoraSpec) -> None:
        super().__init__(linear, lora)
        self.tp = linear.tp

    def product(self, input: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        inner, b = F.linear(input, self.lora_a), enter(self.lora_b, self.tp)
        return torch.addmm(super().product(input, bias), inner, b.t(), alpha=self.scale)


def adapt(decoder: Decoder, lora: LoraSpec) -> None:
    """Gives every target of a decoder an adapter (float32, not yet filled); freeze all other parameters."""
    decoder.requires_grad_(False)
    for block in decoder.model.layers:
        for part, names in (("self_attn", ATTENTION), ("mlp", MLP)):
            module = block.get_submodule(part)
            for name in names:
                if name not in lora.targets:
                    continue
                linear = module.get_submodule(name)
                if isinstance(linear, ColumnLinear):
                    setattr(module, name, LoraColumn(linear, lora, decoder.tp))
                elif isinstance(linear, RowLinear):
                    setattr(module, name, LoraRow(linear, lora))


def adapters(names: list[str]) -> Iterator[tuple[str, str, str]]:
    """(name of a weight, of its A, of its B) for every adapter among a decoder's parameter names."""
    for name in names:
        if name.endswith(f".{A}"):
            stem = name.removesuffix(A)
            yield f"{stem}weight", name, f"{stem}{B}"


def initial(name: str, shape: tuple[int, ...], lora: LoraSpec, seed: int) -> torch.Tensor:
    """float32: what an adapter's tensor starts as; depends on its name and the seed alone."""
    if name.endswith(B):
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed((seed << 32) ^ zlib.crc32(name.encode()))
    return torch.empty(shape).normal_(0.0, 1.0 / lora.rank, generator=generator)


def merged(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, lora: LoraSpec) -> torch.Tensor:
    """float32 [rows, in]: the weight with its adapter added; weight and b may be some rows of the whole."""
    return torch.addmm(weight.float(), b, a, alpha=lora.scale)
