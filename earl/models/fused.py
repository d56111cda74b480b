"""Elementwise parts of a block as single autograd steps: they keep for the backward pass only what it
cannot compute again cheaply, about half of what the plain expressions keep.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normed = x.float() * scale
        grad = grads[0].float()
        weight_grad = None
        if ctx.needs_input_grad[1]:
            weight_grad = (grad * normed).flatten(0, -2).sum(0).to(weight.dtype)
        x_grad = None
        if ctx.needs_input_grad[0]:
            inner = grad * weight.float()
            mean = (inner * normed).mean(-1, keepdim=True)
            x_grad = inner.sub_(normed.mul_(mean)).mul_(scale).to(x.dtype)
        return x_grad, weight_grad, None


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        gate_grad = torch.ops.aten.silu_backward(grads[0] * up, gate)
        return gate_grad, F.silu(gate).mul_(grads[0])


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., H] divided by its root mean square (in float32), in x's dtype, times weight [H]."""
    return _RMSNorm.apply(x, weight, eps)  # type: ignore[return-value]


def gated_silu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, elementwise."""
    return _GatedSilu.apply(gate, up)  # type: ignore[return-value]
