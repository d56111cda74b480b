"""A decoder over several ranks: who this rank is, and the collectives of a block.

    tp   heads and inner columns are dealt over ranks: column-parallel linears start from a replicated input,
         row-parallel linears end in a sum over the group (Megatron-LM, 1909.08053, section 3)
    cp   packed rows are dealt over ranks: all-to-all before attention turns this rank's rows of all heads
         into all rows of this rank's heads, and back after it (DeepSpeed-Ulysses, 2309.14509)

Each collective's backward pass is another of them. The loss of all ranks together is the sum of theirs, so
a rank counts each of its own terms once: gradients of a block's parameters are then complete over tp and
a term of a sum over cp; those of the embedding, the last norm and lm_head are a term of a sum over both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from earl.models.custom_gradient import custom_gradient, unchanged


@dataclass(frozen=True)
class TensorParallel:
    """This rank's place in tensor parallelism. group: a process group; unused if size is 1.

    sharing: the group of the `shared` ranks that hold the same key-value heads; without it a rank's gradient
    of such a head is that of its queries alone.
    """

    rank: int = 0
    size: int = 1
    group: Any = None
    sharing: Any = None
    shared: int = 1

    @property
    def replicas(self) -> TensorParallel:
        """The ranks that hold this rank's key-value heads."""
        return TensorParallel(self.rank % self.shared, self.shared, self.sharing)


@dataclass(frozen=True)
class ContextParallel:
    """This rank's place among those that share packed sequences. `group` is unused if size is 1."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def rows(self, total: int) -> tuple[int, int]:
        """First row, and the one after the last, of `total` packed rows that are this rank's."""
        return total * self.rank // self.size, total * (self.rank + 1) // self.size

    def sizes(self, total: int) -> list[int]:
        """Rows of each rank."""
        return [total * (i + 1) // self.size - total * i // self.size for i in range(self.size)]


def _summed(x: torch.Tensor, group: Any) -> torch.Tensor:
    x = x.contiguous()
    dist.all_reduce(x, group=group)
    return x


def enter(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """The identity, before column-parallel linears and of shared parameters.

    Its gradient is summed over the group.
    """
    return x if tp.size == 1 else custom_gradient(x, unchanged, partial(_summed, group=tp.group))


def leave(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """The sum over the group after row-parallel linears; the gradient passes unchanged."""
    return x if tp.size == 1 else custom_gradient(x, partial(_summed, group=tp.group), unchanged)


def spread(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """The identity after what every rank computes alike; each rank has an equal part of the gradient."""
    return x if tp.size == 1 else custom_gradient(x, unchanged, lambda grad: grad / tp.size)


def to_heads(x: torch.Tensor, cp: ContextParallel, total: int) -> torch.Tensor:
    """[this rank's rows, heads, D] → [total rows, heads / cp, D]: rank r gets the r-th part of the heads."""
    if cp.size == 1:
        return x
    return custom_gradient(x, partial(_to_heads, cp=cp, total=total), partial(_to_rows, cp=cp, total=total))


def to_rows(x: torch.Tensor, cp: ContextParallel, total: int) -> torch.Tensor:
    """[total rows, heads / cp, D] → [this rank's rows, heads, D]."""
    if cp.size == 1:
        return x
    return custom_gradient(x, partial(_to_rows, cp=cp, total=total), partial(_to_heads, cp=cp, total=total))


def _to_heads(x: torch.Tensor, cp: ContextParallel, total: int) -> torch.Tensor:
    rows, heads, width = x.shape
    # For each rank its heads of this rank's rows; what arrives lies row after row.
    sent = x.reshape(rows, cp.size, -1).transpose(0, 1).contiguous().view(cp.size * rows, -1)
    got = x.new_empty((total, heads // cp.size * width))
    dist.all_to_all_single(got, sent, cp.sizes(total), [rows] * cp.size, group=cp.group)
    return got.view(total, heads // cp.size, width)


def _to_rows(x: torch.Tensor, cp: ContextParallel, total: int) -> torch.Tensor:
    heads, width = x.shape[1:]
    start, stop = cp.rows(total)
    rows = stop - start
    got = x.new_empty((cp.size * rows, heads * width))
    sent = x.reshape(total, -1).contiguous()
    dist.all_to_all_single(got, sent, [rows] * cp.size, cp.sizes(total), group=cp.group)
    return got.view(cp.size, rows, heads * width).transpose(0, 1).reshape(rows, cp.size * heads, width)


class ColumnLinear(nn.Linear):
    """A linear layer that holds `outer` rows of the weight; its input is replicated and has passed `enter`.

    replicas: the ranks that hold the same rows.
    """

    def __init__(self, inner: int, outer: int, bias: bool, replicas: TensorParallel | None = None) -> None:
        super().__init__(inner, outer, bias=bias)
        self.replicas = replicas or TensorParallel()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight = enter(self.weight, self.replicas)
        return F.linear(input, weight, None if self.bias is None else enter(self.bias, self.replicas))


class RowLinear(nn.Linear):
    """A linear layer that holds `inner` columns of the weight: products are summed, the bias added once."""

    def __init__(self, inner: int, outer: int, bias: bool, tp: TensorParallel) -> None:
        super().__init__(inner, outer, bias=bias)
        self.tp = tp

    def product(self, input: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The term of the product that this rank computes."""
        return F.linear(input, self.weight, bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.tp.size == 1:
            return self.product(input, self.bias)
        out = leave(self.product(input), self.tp)
        return out if self.bias is None else out + self.bias
