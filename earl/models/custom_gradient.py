"""A step of the forward pass whose backward pass is given, not derived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# What a pass does with a tensor or its gradient.
Step = Callable[[torch.Tensor], torch.Tensor]


class _CustomGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Step, backward: Step) -> torch.Tensor:
        ctx.step = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.step(grads[0]), None, None


def custom_gradient(x: torch.Tensor, forward: Step, backward: Step) -> torch.Tensor:
    """`forward` of a tensor in the forward pass, `backward` of its gradient in the backward pass.

    `backward` lives until the backward pass, and keeps in memory what it refers to.
    """
    return _CustomGradient.apply(x, forward, backward)  # type: ignore[return-value]


def unchanged(x: torch.Tensor) -> torch.Tensor:
    """The step of a pass that changes nothing."""
    return x
