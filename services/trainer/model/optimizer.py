"""AdamW on the local shards: element-wise, so that a shard is updated as it would be in the whole.

Working on plain local tensors keeps DTensor's dispatch out of the step; the one thing that needs
the other ranks is the gradient's norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import _foreach_mul_, _foreach_norm, _fused_adamw_  # pyright: ignore[reportPrivateImportUsage]

from services.trainer.model.sharded_policy import Shard
from services.trainer.ranks.process_group import Group


def decay(progress: float, final_fraction: float) -> float:
    """Factor that falls linearly from 1 to final_fraction; progress: fraction of the phase done, 0..1."""
    return 1.0 - (1.0 - final_fraction) * min(1.0, max(0.0, progress))


def ramp(updates: int, warmup_steps: int) -> float:
    """Factor that rises linearly to 1 over a phase's first warmup_steps optimizer steps."""
    return min(1.0, (updates + 1) / warmup_steps) if warmup_steps > 0 else 1.0


class AdamW:
    """Decoupled weight decay (on matrices only), fused kernel, moments in float32."""

    def __init__(
        self,
        shards: Sequence[Shard],
        betas: tuple[float, float],
        weight_decay: float,
        updates: int = 0,
        epsilon: float = 1e-8,
    ) -> None:
        self._shards = [shard for shard in shards if shard.box.size]
        self._counted = {shard.name for shard in self._shards if shard.counts}
        self._betas = betas
        self._decay = weight_decay
        self._epsilon = epsilon
        # Both moments of each shard; on the meta device while the shard is.
        self.moments = {
            shard.name: [torch.zeros_like(shard.local), torch.zeros_like(shard.local)]
            for shard in self._shards
        }
        # Updates since the moments were zero.
        self.updates = updates

    def reset(self) -> None:
        """Sets the moments to their initial values."""
        for pair in self.moments.values():
            for moment in pair:
                moment.zero_()
        self.updates = 0

    @torch.no_grad()
    def gradient_norm(self, group: Group) -> float:
        """Norm of the whole gradient, what several ranks hold once; not finite if any part is not."""
        gradients = [gradient for shard, gradient in self._gradients() if shard.name in self._counted]
        square = torch.zeros((), dtype=torch.float64)
        if gradients:
            norms = torch.stack(_foreach_norm(gradients)).double()
            square = norms.square().sum().cpu()
        return math.sqrt(float(group.sum(square.reshape(1))[0]))

    @torch.no_grad()
    def step(self, lr: float, norm: float, max_norm: float) -> None:
        """Makes one update, with the gradient scaled down to max_norm if its norm is larger."""
        self.updates += 1
        scale = min(1.0, max_norm / (norm + 1e-6))
        beta1, beta2 = self._betas
        for decayed in (True, False):
            pairs = [(s, g) for s, g in self._gradients() if (len(s.shape) > 1) is decayed]
            if not pairs:
                continue
            chosen, gradients = [s for s, _ in pairs], [g for _, g in pairs]
            if scale < 1.0:
                _foreach_mul_(gradients, scale)
            device = chosen[0].local.device
            count = torch.tensor(float(self.updates), device=device)
            _fused_adamw_(
                [s.local for s in chosen],
                gradients,
                [self.moments[s.name][0] for s in chosen],
                [self.moments[s.name][1] for s in chosen],
                [],
                [count] * len(chosen),
                lr=lr,
                beta1=beta1,
                beta2=beta2,
                weight_decay=self._decay if decayed else 0.0,
                eps=self._epsilon,
                amsgrad=False,
                maximize=False,
            )

    def _gradients(self) -> list[tuple[Shard, torch.Tensor]]:
        pairs = [(shard, shard.gradient) for shard in self._shards]
        return [(shard, gradient) for shard, gradient in pairs if gradient is not None]
