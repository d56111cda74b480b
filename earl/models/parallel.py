"""Tensor parallelism inside a decoder: who this rank is, and the two collectives of a block.

Column-parallel linears start from a replicated input, row-parallel linears end in a sum over the
group (Megatron-LM, 1909.08053, section 3); their backward passes are each other's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class TensorParallel:
    """This rank's place. `group` is a process group; unused if size is 1."""

    rank: int = 0
    size: int = 1
    group: Any = None


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grads[0].contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


def enter(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Before column-parallel linears: identity; the gradient is summed over the group."""
    return x if tp.size == 1 else _Enter.apply(x, tp.group)  # type: ignore[return-value]


def leave(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """After row-parallel linears: the sum over the group; the gradient passes."""
    return x if tp.size == 1 else _Leave.apply(x, tp.group)  # type: ignore[return-value]
