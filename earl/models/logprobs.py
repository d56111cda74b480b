"""Log-probs of given tokens from hidden states, without ever holding [tokens, vocabulary].

    for each chunk of rows:  logits = hidden W^T ─► log-prob of the target, entropy     (forward)
                             logits again ─► their gradient ─► += hidden's and W's      (backward)

Promise: at most CHUNK_BYTES (on a GPU GPU_CHUNK_BYTES) of float32 logits exist at once, and in the
backward pass as much again for their gradient; nothing of the vocabulary's width outlives a chunk but
W's own gradient. The softmax is computed in float32 whatever the dtype of hidden and W.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

# The one bound on how many logits exist at once: bytes of float32. A GPU needs more rows to be busy: of a
# vocabulary of 151,936 words, 64 MiB are 110 rows.
CHUNK_BYTES = 64 << 20
GPU_CHUNK_BYTES = 512 << 20


def token_logprobs(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float | torch.Tensor = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-prob of targets, entropy), each float32 [N], of softmax(hidden W^T / temperature).

    hidden [N, H] and weight [V, H] of one dtype, targets int64 [N], temperature one number or [N]. Both
    results are differentiable with respect to hidden and weight.
    """
    heat = None
    if isinstance(temperature, torch.Tensor):
        heat = temperature.to(hidden.device, torch.float32)[:, None]
    elif temperature != 1.0:
        heat = torch.full((len(hidden), 1), temperature, device=hidden.device)
    return _TokenLogprobs.apply(hidden, weight, targets, heat)  # type: ignore[return-value]


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, heat: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        logprobs, entropy, normalisers = torch.empty((3, len(hidden)), device=hidden.device)
        for rows, logits in _chunks(hidden, weight, heat):
            highest = logits.amax(-1, keepdim=True)
            chosen = logits.sub_(highest).gather(-1, targets[rows, None]).squeeze(-1)
            weights = logits.exp()
            total = weights.sum(-1)
            # sum(p log p) without the product as a tensor: one dot product a row.
            mean = torch.bmm(weights[:, None], logits[:, :, None]).view(-1) / total
            log_total = total.log()
            logprobs[rows] = chosen - log_total
            entropy[rows] = log_total - mean
            normalisers[rows] = highest.squeeze(-1) + log_total
        ctx.save_for_backward(hidden, weight, targets, heat, normalisers, entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, heat, normalisers, entropy = ctx.saved_tensors
        by_logprob, by_entropy = (None if g is None else _scaled(g, heat) for g in grads)
        wants_hidden, wants_weight, *_ = ctx.needs_input_grad
        hidden_grad = torch.zeros_like(hidden) if wants_hidden else None
        # Many chunks add up here: in float32.
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if wants_weight else None
        for rows, logits in _chunks(hidden, weight, heat):
            columns = targets[rows, None]
            slope = logits.sub_(normalisers[rows, None])
            # d logprob / d logit_j = [j is the target] - p_j
            # d entropy / d logit_j = -p_j (log p_j + entropy)
            if by_entropy is None:
                slope.exp_()
                if by_logprob is not None:
                    slope.mul_(by_logprob[rows])
            else:
                p = slope.exp()
                slope.add_(entropy[rows, None]).mul_(by_entropy[rows])
                if by_logprob is not None:
                    slope.add_(by_logprob[rows])
                slope.mul_(p)
            if by_logprob is not None:
                slope.scatter_add_(1, columns, -by_logprob[rows])
            narrow = slope.to(hidden.dtype)
            if hidden_grad is not None:
                torch.mm(narrow, weight, out=hidden_grad[rows])
            if weight_grad is not None:
                _add_product(weight_grad, narrow, hidden[rows])
        return hidden_grad, None if weight_grad is None else weight_grad.to(weight.dtype), None, None


def _scaled(gradient: torch.Tensor, heat: torch.Tensor | None) -> torch.Tensor:
    """[N, 1]: minus the gradient with respect to logits before they were divided by heat."""
    negative = -gradient[:, None]
    return negative if heat is None else negative.div_(heat)


def _add_product(total: torch.Tensor, slope: torch.Tensor, hidden: torch.Tensor) -> None:
    """total [V, H] float32 += slope^T hidden."""
    if hidden.dtype is torch.float32:
        total.addmm_(slope.t(), hidden)
    else:
        total.add_(slope.t() @ hidden)


def _chunks(
    hidden: torch.Tensor, weight: torch.Tensor, heat: torch.Tensor | None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """(rows, float32 logits of those rows divided by heat), in one buffer that the next chunk reuses."""
    size = max(1, (GPU_CHUNK_BYTES if hidden.is_cuda else CHUNK_BYTES) // (4 * len(weight)))
    buffer = torch.empty((min(size, len(hidden)), len(weight)), device=hidden.device)
    for start in range(0, len(hidden), size):
        rows = slice(start, min(start + size, len(hidden)))
        logits = buffer[: rows.stop - start]
        if hidden.dtype is torch.float32:
            torch.mm(hidden[rows], weight.t(), out=logits)
        else:
            logits.copy_(hidden[rows] @ weight.t())
        yield rows, logits if heat is None else logits.div_(heat[rows])
