"""Llama, Qwen2 and Qwen3 decoders in one module whose parameter names are transformers'.

    tokens [T] ─ embed ─► [T, H] ─ blocks (linear layers on packed tokens, attention per sequence)
               ─ norm ─► hidden [T, H] ─► logits, or log-probs of given targets, chunk by chunk

Logits equal transformers' to 1e-4 (tests/unit/models/test_module.py). Every block is called through
its forward, and the root's forward reaches all that the root owns, so FSDP2's fully_shard may wrap
the blocks and the root. With tp, this rank's module holds its slices only (earl.models.slices); with cp, its
tokens and rows are this rank's part of the packed ones. Whose terms gradients are: earl.models.parallel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from earl.models.fused import gated_silu, rms_norm
from earl.models.logprobs import token_logprobs
from earl.models.packing import Packing, causal_attention, take_rows
from earl.models.parallel import (
    ColumnLinear,
    ContextParallel,
    RowLinear,
    TensorParallel,
    enter,
    spread,
    to_heads,
    to_rows,
)
from earl.models.spec import ModelSpec, Rope
from earl.models.tp import check_parallelism, rank_heads


def rope_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Radians per position of each pair of dimensions: [head_dim / 2] float32, on the CPU."""
    powers = torch.arange(0, head_dim, 2, dtype=torch.int64, device="cpu").float() / head_dim
    frequencies = 1.0 / (rope.theta**powers)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        wavelengths = 2 * math.pi / frequencies
        low, high = rope.low_freq_factor, rope.high_freq_factor
        smooth = (rope.original_max_positions / wavelengths - low) / (high - low)
        smooth = smooth.clamp(0.0, 1.0)
        return (1 - smooth) * frequencies / rope.factor + smooth * frequencies
    return frequencies


def rope_table(
    frequencies: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and signed sine for `rotate`: each [T, 1, D]; positions [T] int64."""
    angles = positions.to(torch.float32)[:, None] * frequencies.to(positions.device)
    cosine, sine = angles.cos(), angles.sin()
    cosine, sine = torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)
    return cosine[:, None].to(dtype), sine[:, None].to(dtype)


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [T, heads, D]; the halves of D are the pairs."""
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine)


class RMSNorm(nn.Module):
    """Root mean square normalisation. tp: the ranks that normalise different heads with this weight."""

    def __init__(self, size: int, eps: float, tp: TensorParallel | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.tp = tp or TensorParallel()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, enter(self.weight, self.tp), self.eps)


class Attention(nn.Module):
    def __init__(self, spec: ModelSpec, tp: TensorParallel, cp: ContextParallel) -> None:
        super().__init__()
        self.tp, self.cp, self.head_dim = tp, cp, spec.head_dim
        query, key = (count * spec.head_dim for count in rank_heads(spec, tp.size))
        self.q_proj = ColumnLinear(spec.hidden, query, spec.qkv_bias)
        self.k_proj = ColumnLinear(spec.hidden, key, spec.qkv_bias, tp.replicas)
        self.v_proj = ColumnLinear(spec.hidden, key, spec.qkv_bias, tp.replicas)
        self.o_proj = RowLinear(query, spec.hidden, spec.o_bias, tp)
        if spec.qk_norm:
            self.q_norm = RMSNorm(spec.head_dim, spec.eps, tp)
            self.k_norm = RMSNorm(spec.head_dim, spec.eps, tp)
        self.qk_norm = spec.qk_norm

    def forward(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, packing: Packing
    ) -> torch.Tensor:
        x = enter(x, self.tp)
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        if self.cp.size == 1:
            return self.o_proj(causal_attention(query, key, value, packing).flatten(1))
        query, key, value = self._split_heads(query, key, value, packing.rows)
        out = causal_attention(query, key, value, packing)
        return self.o_proj(to_rows(out, self.cp, packing.rows).flatten(1))

    def _split_heads(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, total: int
    ) -> tuple[torch.Tensor, ...]:
        """All rows of the heads that this rank attends with, in one exchange. With fewer key-value heads than
        ranks, several ranks get the same head.
        """
        ranks = self.cp.size
        if key.shape[1] % ranks:
            times = ranks // key.shape[1]
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        parts = [x.unflatten(1, (ranks, -1)) for x in (query, key, value)]
        sizes = [part.shape[2] for part in parts]
        return to_heads(torch.cat(parts, 2).flatten(1, 2), self.cp, total).split(sizes, 1)


class MLP(nn.Module):
    def __init__(self, spec: ModelSpec, tp: TensorParallel) -> None:
        super().__init__()
        self.tp = tp
        inner = spec.intermediate // tp.size
        self.gate_proj = ColumnLinear(spec.hidden, inner, False)
        self.up_proj = ColumnLinear(spec.hidden, inner, False)
        self.down_proj = RowLinear(inner, spec.hidden, False, tp)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = enter(x, self.tp)
        return self.down_proj(gated_silu(self.gate_proj(x), self.up_proj(x)))


class Block(nn.Module):
    """One decoder layer on packed tokens: x [T, H] → [T, H].

    checkpointed: keep only x for the backward pass, and compute the rest again. It happens inside forward,
    so that what wraps the block (FSDP2) has its parameters gathered for both.
    """

    checkpointed = False

    def __init__(self, spec: ModelSpec, tp: TensorParallel, cp: ContextParallel) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden, spec.eps)
        self.self_attn = Attention(spec, tp, cp)
        self.post_attention_layernorm = RMSNorm(spec.hidden, spec.eps)
        self.mlp = MLP(spec, tp)

    def forward(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, packing: Packing
    ) -> torch.Tensor:
        if self.checkpointed and torch.is_grad_enabled():
            arguments = (x, cosine, sine, packing)
            return checkpoint(self._compute, *arguments, use_reentrant=False, preserve_rng_state=False)
        return self._compute(x, cosine, sine, packing)

    def _compute(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, packing: Packing
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine, packing)
        return x + self.mlp(self.post_attention_layernorm(x))


class Stack(nn.Module):
    """The part that transformers calls `model`: embedding, blocks and the last norm, under its names."""

    def __init__(self, spec: ModelSpec, tp: TensorParallel, cp: ContextParallel) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(spec.vocab, spec.hidden)
        self.layers = nn.ModuleList(Block(spec, tp, cp) for _ in range(spec.layers))
        self.norm = RMSNorm(spec.hidden, spec.eps)


class ValueHead(nn.Module):
    """A critic on the decoder's hidden states [N, H]: values float32 [N]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.float() @ self.weight.float()


class Decoder(nn.Module):
    """A decoder for training: `decoder(tokens, positions, lengths, targets)`.

    value_head: the critic of a decoder that has one (`add_critic`), else None.

    Raises IllegalParallelism if tp and cp do not divide the heads. May be built on the meta device.
    """

    def __init__(
        self, spec: ModelSpec, tp: TensorParallel | None = None, cp: ContextParallel | None = None
    ) -> None:
        super().__init__()
        self.spec, self.tp, self.cp = spec, tp or TensorParallel(), cp or ContextParallel()
        check_parallelism(spec, self.tp.size, self.cp.size)
        self.model = Stack(spec, self.tp, self.cp)
        if not spec.tied:
            self.lm_head = nn.Linear(spec.hidden, spec.vocab, bias=False)
        self.value_head: ValueHead | None = None

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        lengths: Sequence[int] | torch.Tensor,
        targets: torch.Tensor | None = None,
        temperature: float | torch.Tensor = 1.0,
        rows: torch.Tensor | None = None,
        shared: Sequence[int] | None = None,
        blocks: Sequence[int] | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Packed forward pass, the only entry under FSDP2.

        tokens, positions [T] int64; lengths [B] of the packed sequences; shared [B]: of each, how many of
        its first tokens have no rows because they are those of the sequence before (Packing.of). T is the
        sum of lengths less that of shared.
        Without targets: hidden [T, H]. With targets [N] int64: (logprobs [N], entropy [N]), with a critic
        (.., .., values [N]), in float32, differentiable, where targets[i] is the token that follows packed
        row rows[i] (rows [N] int64, none twice; None: every row, N = T). temperature is one number or [N].
        With cp, tokens, positions and rows are of this rank's rows (ContextParallel.rows) of the T; lengths
        and shared are of all. blocks: the numbers of those that are computed, ascending; None: all.
        """
        hidden = self.forward_packed(tokens, positions, lengths, shared, blocks)
        if targets is None:
            return hidden
        chosen = hidden if rows is None else take_rows(hidden, rows)
        outputs = self.token_logprobs(chosen, targets, temperature)
        return outputs if self.value_head is None else (*outputs, self.value_head(chosen))

    def forward_packed(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        lengths: Sequence[int] | torch.Tensor,
        shared: Sequence[int] | None = None,
        blocks: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """hidden [T, H] after the last norm, through `blocks` as in `forward`."""
        x = spread(self.model.embed_tokens(tokens), self.tp)
        frequencies = rope_frequencies(self.spec.rope, self.spec.head_dim)
        cosine, sine = rope_table(frequencies, positions, x.dtype)
        packing = Packing.of(lengths, tokens.device, shared)
        layers = self.model.layers
        for block in layers if blocks is None else [layers[number] for number in blocks]:
            x = block(x, cosine, sine, packing)
        return self.model.norm(enter(x, self.tp))

    @property
    def output_weight(self) -> torch.Tensor:
        """[vocab, H]: lm_head, or the embedding where they are tied."""
        return self.model.embed_tokens.weight if self.spec.tied else self.lm_head.weight

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, H] → [N, vocab]."""
        return F.linear(hidden, self.output_weight)

    def token_logprobs(
        self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float | torch.Tensor = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-prob of targets, entropy), float32 [N], of softmax(logits / temperature), chunk by chunk."""
        return token_logprobs(hidden, self.output_weight, targets, temperature)

    def add_critic(self) -> None:
        """Gives the decoder a critic, not yet filled, on the device and in the dtype of new parameters."""
        self.value_head = ValueHead(self.spec.hidden)

    def checkpoint_activations(self) -> None:
        """Makes blocks keep only their inputs for the backward pass."""
        for block in self.model.layers:
            cast(Block, block).checkpointed = True


class _Uninitialised(TorchFunctionMode):
    """Leaves tensors as they are where a module would draw its first values (torch.nn.init)."""

    def __torch_function__(
        self, func: Callable, types: Iterable[type], args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs.get("tensor", args[0] if args else None)
        return func(*args, **kwargs)


def decoder_on_meta(
    spec: ModelSpec, tp: TensorParallel | None = None, cp: ContextParallel | None = None
) -> Decoder:
    """A decoder that has shapes and no memory yet.

    No initial values are drawn, which a meta device cannot hold: torch would import its compiler for that
    (0.4 s of CPU).
    """
    with torch.device("meta"), _Uninitialised():
        return Decoder(spec, tp, cp)


def initialise(decoder: Decoder, seed: int, embedding_std: float = 0.02) -> None:
    """Random weights: matrices normal with deviation 1/sqrt(inputs), norms one, biases zero.

    What adds to the residual stream (o_proj, down_proj) is drawn 1/sqrt(2 * layers) smaller, so that the
    stream does not grow with depth (GPT-2). embedding_std: deviation of the embedding; a tiny vocabulary
    wants more than the usual 0.02.
    """
    generator = torch.Generator().manual_seed(seed)
    residual = (2 * decoder.spec.layers) ** -0.5
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                std = embedding_std if "embed_tokens" in name else parameter.shape[1] ** -0.5
                if "o_proj" in name or "down_proj" in name:
                    std *= residual
                parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))
