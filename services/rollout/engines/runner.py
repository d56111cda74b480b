"""One rank's forward pass over a KV cache with a fixed number of slots.

    batch: slot, start, count of each sequence ─► linear layers on packed tokens [T, H]
                                               ─► attention by bucket against the slots' KV
                                               ─► logits [B, V] of each sequence's last token

Linear layers see no padding; attention pads within buckets of like counts (decoding is the bucket of
count 1). Where a bucket covers most of a range of slots it attends to a view of the cache, and idle
slots in between compute something that nobody reads: cheaper than gathering the cache.
Weights are fused for speed; `weights` still names every slice as transformers does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from earl.dispatch.layout import Box
from earl.models.module import rope_frequencies, rope_table, rotate
from earl.models.parallel import TensorParallel
from earl.models.spec import ModelSpec
from earl.models.tp import check_tp, tp_box
from earl.models.weights import Checkpoint
from services.rollout.engines.batch import Batch

# A bucket reads the cache in place if it fills at least this fraction of its range of slots.
VIEW_FRACTION = 0.5
# Elements of one bucket's attention mask; what is larger is cut over several buckets.
MASK_ELEMENTS = 1 << 26


@dataclass
class _Bucket:
    """Sequences that attend together. rows: their packed tokens. keys: slots of the cache, a slice
    or an index [R]. there [R*Q], back [rows]: padded to packed and back, None if they are the same.
    visible [R, 1, Q, L] bool."""

    rows: slice
    keys: slice | torch.Tensor
    length: int
    there: torch.Tensor | None
    back: torch.Tensor | None
    queries: int
    visible: torch.Tensor


@dataclass
class _Layer:
    """Fused weights of one block and its cache, keys and values [S, C, kv_heads, D]."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


class Runner:
    """Holds this rank's weights and KV cache. slots S and context C (tokens) size the cache.

    Raises IllegalParallelism if tp does not divide the heads.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tp: TensorParallel,
        *,
        slots: int,
        context: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        check_tp(spec, tp.size)
        self.spec, self.tp = spec, tp
        self.slots, self.context = slots, context
        self.dtype, self.device = dtype, torch.device(device)
        self.heads, self.kv_heads = spec.heads // tp.size, spec.kv_heads // tp.size
        # Every tensor's slice on this rank by its transformers name: views into the fused weights.
        self.weights: dict[str, torch.Tensor] = {}
        # Box of the whole tensor that each of them is.
        self.boxes: dict[str, Box] = {
            name: tp_box(name, shape, spec, tp.rank, tp.size) for name, shape in spec.shapes().items()
        }
        self._embedding = self._own("model.embed_tokens.weight", (spec.vocab, spec.hidden))
        self._layers = [self._layer(f"model.layers.{number}.") for number in range(spec.layers)]
        self._norm = self._own("model.norm.weight", (spec.hidden,))
        self._head = self._embedding if spec.tied else self._own("lm_head.weight", (spec.vocab, spec.hidden))
        positions = torch.arange(context, device=self.device)
        frequencies = rope_frequencies(spec.rope, spec.head_dim)
        self._cosine, self._sine = rope_table(frequencies, positions, dtype)

    # --- weights ------------------------------------------------------------------------------

    def _own(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.weights[name] = tensor
        return tensor

    def _fused(self, names: list[str]) -> torch.Tensor:
        """One tensor for several that are stacked by rows; each keeps its name."""
        shapes = [self.boxes[name].shape for name in names]
        rows = [shape[0] for shape in shapes]
        whole = torch.zeros((sum(rows), *shapes[0][1:]), dtype=self.dtype, device=self.device)
        self.weights.update(zip(names, whole.split(rows), strict=True))
        return whole

    def _layer(self, at: str) -> _Layer:
        spec, attention = self.spec, at + "self_attn."
        projections = [attention + f"{letter}_proj" for letter in "qkv"]
        own = lambda name: self._own(name, self.boxes[name].shape)  # noqa: E731
        cache = (self.slots, self.context, self.kv_heads, spec.head_dim)
        return _Layer(
            input_norm=own(at + "input_layernorm.weight"),
            qkv=self._fused([name + ".weight" for name in projections]),
            qkv_bias=self._fused([name + ".bias" for name in projections]) if spec.qkv_bias else None,
            q_norm=own(attention + "q_norm.weight") if spec.qk_norm else None,
            k_norm=own(attention + "k_norm.weight") if spec.qk_norm else None,
            out=own(attention + "o_proj.weight"),
            out_bias=own(attention + "o_proj.bias") if spec.o_bias else None,
            post_norm=own(at + "post_attention_layernorm.weight"),
            gate_up=self._fused([at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"]),
            down=own(at + "mlp.down_proj.weight"),
            keys=torch.zeros(cache, dtype=self.dtype, device=self.device),
            values=torch.zeros(cache, dtype=self.dtype, device=self.device),
        )

    def load(self, directory: str) -> None:
        """Fill the weights from a checkpoint directory. Raises ModelNotFound, UnsupportedModel."""
        checkpoint = Checkpoint(directory)
        checkpoint.check(self.spec)
        with torch.inference_mode():
            for name, view in self.weights.items():
                view.copy_(checkpoint.read(name, self.boxes[name]))

    # --- forward ------------------------------------------------------------------------------

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor | None:
        """Add the batch's tokens to the cache. Logits [B, V] of each sequence's last token, in the
        batch's order, on rank 0; None on the others. Sequences are in any order."""
        order = np.lexsort((batch.slots, -batch.counts))
        slots, starts, counts = batch.slots[order], batch.starts[order], batch.counts[order]
        ends = np.cumsum(counts)
        offsets = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        positions = np.repeat(starts, counts) + offsets
        source = np.repeat((np.cumsum(batch.counts) - batch.counts)[order], counts) + offsets
        flat = self._index(np.repeat(slots, counts) * self.context + positions)
        buckets = self._buckets(slots, starts, counts)
        positions = self._index(positions)
        cosine, sine = self._cosine.index_select(0, positions), self._sine.index_select(0, positions)
        x = self._embedding.index_select(0, self._index(batch.tokens[source]))
        for layer in self._layers:
            x = self._block(layer, x, cosine, sine, flat, buckets)
        if self.tp.rank != 0:
            return None
        last = np.empty_like(order)
        last[order] = ends - 1
        x = self._normed(x.index_select(0, self._index(last)), self._norm)
        return F.linear(x, self._head)

    def _index(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, non_blocking=True)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.spec.eps)

    def _summed(self, x: torch.Tensor) -> torch.Tensor:
        if self.tp.size > 1:
            dist.all_reduce(x, group=self.tp.group)
        return x

    def _block(
        self,
        layer: _Layer,
        x: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        flat: torch.Tensor,
        buckets: list[_Bucket],
    ) -> torch.Tensor:
        heads, kv_heads = self.heads, self.kv_heads
        projected = F.linear(self._normed(x, layer.input_norm), layer.qkv, layer.qkv_bias)
        projected = projected.unflatten(-1, (heads + 2 * kv_heads, self.spec.head_dim))
        rotated = projected[:, : heads + kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            query = self._normed(projected[:, :heads], layer.q_norm)
            rotated = torch.cat((query, self._normed(projected[:, heads:-kv_heads], layer.k_norm)), 1)
        rotated = rotate(rotated, cosine, sine)
        layer.keys.flatten(0, 1).index_copy_(0, flat, rotated[:, heads:])
        layer.values.flatten(0, 1).index_copy_(0, flat, projected[:, -kv_heads:])
        outputs = [self._attend(layer, rotated[bucket.rows, :heads], bucket) for bucket in buckets]
        attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        out = self._summed(F.linear(attended, layer.out))
        x = x + out if layer.out_bias is None else x + out + layer.out_bias
        gate_up = F.linear(self._normed(x, layer.post_norm), layer.gate_up)
        gate, up = gate_up.chunk(2, -1)
        return x + self._summed(F.linear(F.silu(gate).mul_(up), layer.down))

    def _attend(self, layer: _Layer, query: torch.Tensor, bucket: _Bucket) -> torch.Tensor:
        """query [rows, heads, D] → [rows, heads * D]. The queries that share a key head are folded
        into its query dimension: no key is repeated."""
        if bucket.there is not None:
            query = query.index_select(0, bucket.there)
        group = self.heads // self.kv_heads
        # [R, Q, kv, G, D] → [R, kv, G * Q, D]
        query = query.reshape(-1, bucket.queries, self.kv_heads, group, self.spec.head_dim)
        query = query.permute(0, 2, 3, 1, 4).flatten(2, 3)
        keys, values = layer.keys[:, : bucket.length], layer.values[:, : bucket.length]
        if isinstance(bucket.keys, slice):
            keys, values = keys[bucket.keys], values[bucket.keys]
        else:
            keys, values = keys.index_select(0, bucket.keys), values.index_select(0, bucket.keys)
        out = F.scaled_dot_product_attention(
            query, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=bucket.visible
        )
        out = out.unflatten(2, (group, bucket.queries)).permute(0, 3, 1, 2, 4)
        out = out.reshape(-1, self.heads * self.spec.head_dim)
        return out if bucket.back is None else out.index_select(0, bucket.back)

    # --- buckets ------------------------------------------------------------------------------

    def _buckets(self, slots: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> list[_Bucket]:
        """Cut sequences, sorted by falling count, where a count falls below half of its bucket's
        first; those that decode (count 1) are a bucket of their own."""
        buckets = []
        first = row = 0
        while first < len(counts):
            longest = int(counts[first])
            least = 1 if longest == 1 else max(2, -(-longest // 2))
            last = first + int(np.searchsorted(-counts[first:], -least, side="right"))
            most = max(1, MASK_ELEMENTS // (longest * int((starts + counts)[first:last].max())))
            last = min(last, first + most)
            here = slice(first, last)
            rows = slice(row, row + int(counts[here].sum()))
            buckets.append(self._bucket(rows, slots[here], starts[here], counts[here]))
            first, row = last, rows.stop
        return buckets

    def _bucket(self, rows: slice, slots: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> _Bucket:
        queries, length = int(counts.max()), int((starts + counts).max())
        low, high = int(slots.min()), int(slots.max()) + 1
        keys: slice | torch.Tensor
        if len(slots) >= VIEW_FRACTION * (high - low):
            places, keys = slots - low, slice(low, high)
            padded = high - low
        else:
            places, keys = np.arange(len(slots)), self._index(slots)
            padded = len(slots)
        if padded == len(slots) and (counts == queries).all() and (np.diff(places) == 1).all():
            # Every sequence has as many queries, in the cache's order: nothing to pad or move.
            limits = starts[:, None] + np.arange(queries)
            there = back = None
        else:
            inside = np.minimum(np.arange(queries), counts[:, None] - 1)
            limits = np.zeros((padded, queries), dtype=np.int64)
            limits[places] = starts[:, None] + inside
            source = np.zeros((padded, queries), dtype=np.int64)
            source[places] = (np.cumsum(counts) - counts)[:, None] + inside
            there = self._index(source.reshape(-1))
            target = places[:, None] * queries + np.arange(queries)
            back = self._index(target[np.arange(queries) < counts[:, None]])
        visible = torch.arange(length, device=self.device) <= self._index(limits)[:, :, None]
        group = self.heads // self.kv_heads
        if group > 1 and queries > 1:
            visible = visible.repeat(1, group, 1)
        return _Bucket(rows, keys, length, there, back, queries, visible[:, None])
