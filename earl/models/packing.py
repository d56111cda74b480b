"""Packed sequences for attention: [T, ...] of all tokens <-> right-padded [B, L, ...] buckets.

Only attention sees padding; sequences share a bucket if the shortest is at least SHORTEST of the longest.
One sequence alone is never copied, and no [T, T] scores are ever held: the flash kernels work in tiles.

Sequences that begin alike (the answers to one prompt) are packed as a tree: what a sequence shares with
the one before it has rows once, which the linear layers compute once and each sequence's attention reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from earl.models.custom_gradient import custom_gradient

# Length of the shortest sequence of a bucket, as a fraction of the longest.
SHORTEST = 0.75
# Below this length the CPU kernel's backward pass is several times faster in float32 than in bfloat16.
NARROW_TOKENS = 512


def _gathered(x: torch.Tensor, packing: Packing) -> torch.Tensor:
    """Padded rows of packed rows x: both passes are a plain copy of rows, because padding has no gradient."""
    there, back = packing.there, packing.back
    return custom_gradient(x, lambda x: x.index_select(0, there), lambda grad: grad.index_select(0, back))


def _gathered_shared(x: torch.Tensor, packing: Packing) -> torch.Tensor:
    """_gathered for keys and values: a row that several sequences read has the sum of their gradients,
    added up in float32.
    """

    def backward(grad: torch.Tensor) -> torch.Tensor:
        total = grad.index_select(0, packing.back).flatten(1).float()
        total.index_add_(0, packing.again_to, grad.index_select(0, packing.again).flatten(1).float())
        return total.to(grad.dtype).view(-1, *grad.shape[1:])

    return custom_gradient(x, lambda x: x.index_select(0, packing.there), backward)


class _ShortFlash(torch.autograd.Function):
    """The CPU flash kernel in bfloat16, whose backward pass is computed in float32."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out, normalisers = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, is_causal=True
        )
        ctx.save_for_backward(query, key, value, out, normalisers)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value, out, normalisers = ctx.saved_tensors
        wide = (tensor.float() for tensor in (grads[0], query, key, value, out))
        parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *wide, normalisers, 0.0, True
        )
        return tuple(part.to(query.dtype) for part in parts)


@dataclass(frozen=True)
class Packing:
    """The places of the rows of packed tokens in padded buckets.

    buckets: (sequences, padded length) of each. there [sum of B*L] int64: packed row of each padded
    row (padding repeats its sequence's last row). back [T] int64: padded row of each packed row, in the
    sequence that it was packed for. again, again_to [E] int64: the padded rows that read a row packed for
    an earlier sequence, and those packed rows.
    """

    buckets: tuple[tuple[int, int], ...]
    there: torch.Tensor
    back: torch.Tensor
    again: torch.Tensor
    again_to: torch.Tensor
    # Packed and padded rows are the same: nothing to move.
    identity: bool

    @property
    def rows(self) -> int:
        """Packed rows of all sequences."""
        return len(self.back)

    @classmethod
    def of(
        cls, lengths: Sequence[int] | torch.Tensor, device: torch.device, shared: Sequence[int] | None = None
    ) -> Packing:
        """lengths [B] in tokens, all >= 1, in the order in which the sequences are packed.

        shared [B]: how many of a sequence's first tokens are those of the sequence before it, and have no
        rows of their own; less than both lengths, 0 for the first. None: nothing is shared.
        """
        sizes = torch.as_tensor(lengths, dtype=torch.int64, device="cpu")
        ends = torch.cumsum(sizes, 0)
        starts = ends - sizes
        rows, owned = _rows(sizes.tolist(), shared)
        order = torch.argsort(sizes, descending=True, stable=True)
        buckets: list[tuple[int, int]] = []
        there: list[torch.Tensor] = []
        # For each token of each sequence, end to end: its padded row.
        padded = torch.empty(len(rows), dtype=torch.int64)
        first, row = 0, 0
        ordered = sizes[order].tolist()
        while first < len(ordered):
            longest = ordered[first]
            last = first
            while last < len(ordered) and ordered[last] >= SHORTEST * longest:
                last += 1
            # Within a bucket, sequences keep their packed order.
            members = order[first:last].sort().values
            offsets = torch.arange(longest)[None, :]
            inside = offsets < sizes[members, None]
            source = starts[members, None] + torch.minimum(offsets, sizes[members, None] - 1)
            there.append(rows[source.reshape(-1)])
            padded[source[inside]] = torch.arange(row, row + source.numel()).view_as(source)[inside]
            buckets.append((last - first, longest))
            row += source.numel()
            first = last
        joined = torch.cat(there) if there else torch.empty(0, dtype=torch.int64)
        back, again, again_to = padded[owned], padded[~owned], rows[~owned]
        identity = len(buckets) == 1 and len(joined) == len(back)
        return cls(
            tuple(buckets),
            joined.to(device),
            back.to(device),
            again.to(device),
            again_to.to(device),
            identity,
        )


def _rows(lengths: list[int], shared: Sequence[int] | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the packed row of each token of each sequence, end to end, and whether it was packed for it."""
    total = sum(lengths)
    owned = np.ones(total, bool)
    if shared is None or not any(shared):
        return torch.arange(total), torch.from_numpy(owned)
    rows = np.empty(total, np.int64)
    before, start, row = 0, 0, 0
    for length, head in zip(lengths, shared, strict=True):
        rows[start : start + head] = rows[before : before + head]
        owned[start : start + head] = False
        rows[start + head : start + length] = np.arange(row, row + length - head)
        before, start, row = start, start + length, row + length - head
    return torch.from_numpy(rows), torch.from_numpy(owned)


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing
) -> torch.Tensor:
    """Computes attention in which each sequence attends to itself, causally, shared tokens included. query
    [T, heads, D], key and value [T, kv_heads, D] → [T, heads, D]."""
    if not packing.identity:
        # Only the queries of a row's own sequence are kept: the others have no gradient.
        query = _gathered(query, packing)
        gathered = _gathered_shared if len(packing.again) else _gathered
        key, value = gathered(key, packing), gathered(value, packing)
    grouped = query.shape[1] != key.shape[1]
    if grouped and repeats_heads(query.is_cuda, query.dtype):
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        grouped = False
    outputs = []
    # Split, not sliced: the backward pass joins the parts' gradients instead of adding up one whole for each.
    sizes = [sequences * length for sequences, length in packing.buckets]
    parts = zip(*(x.split(sizes) for x in (query, key, value)), strict=True)
    for (sequences, length), part in zip(packing.buckets, parts, strict=True):
        q, k, v = (x.unflatten(0, (sequences, length)).transpose(1, 2) for x in part)
        if q.dtype is torch.bfloat16 and not q.is_cuda and length < NARROW_TOKENS and q.requires_grad:
            out: torch.Tensor = _ShortFlash.apply(q, k, v)  # type: ignore[assignment]
        else:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output if packing.identity else take_rows(output, packing.back)


def repeats_heads(is_cuda: bool, dtype: torch.dtype) -> bool:
    """Returns whether keys and values are repeated for every head, where they have fewer heads.

    The fused kernels of the CPU, and those of CUDA for float32, take equal head counts only; without one CUDA
    would hold a matrix of all pairs of tokens.
    """
    return not is_cuda or dtype is torch.float32


def take_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """x[rows] for rows int64 [N], none of them twice: the backward pass is a copy, not a sum."""
    shape = x.shape
    return custom_gradient(
        x,
        lambda x: x.index_select(0, rows),
        lambda grad: grad.new_zeros(shape).index_copy_(0, rows, grad.contiguous()),
    )
