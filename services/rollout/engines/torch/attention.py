"""Attention of one step over the slots of the KV cache, split into parts that attend together.

    sequences, by falling count ─► long prefills, one by one, causal      (`_Alone`)
                                 ─► shorter ones, padded in buckets       (`_Padded`)
                                 ─► those of few tokens, drafts above all, padded in one, and
                                    those that decode, in one             (`_Short`)

Where a part covers most of a range of slots it attends to a view of the cache, and idle slots in between
compute something that nobody reads: cheaper than gathering the cache. The queries that share a key head
are folded into its query dimension: no key is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

# A part reads the cache in place if it fills at least this fraction of its range of slots.
VIEW_FRACTION = 0.5
# Elements of one part's mask; a larger one is split over several parts.
MASK_ELEMENTS = 1 << 26
# A prefill of at least so many tokens attends by itself, without padding.
ALONE_TOKENS = 64
# Up to so many tokens of a sequence attend as those that decode do: as many as it has with a draft.
SHORT_TOKENS = 17
# Up to so many sequences decode through the fused kernel: fewer calls.
FUSED_SEQUENCES = 2


@dataclass(frozen=True)
class AttentionShape:
    """Heads, key heads and head size of one rank."""

    heads: int
    kv_heads: int
    head_dim: int
    device: torch.device

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    def on_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, non_blocking=True)


class AttentionPart:
    """Sequences that attend together; `rows` are their packed tokens."""

    rows: slice

    def attend(self, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """keys, values [S, kv, C, D] of a layer; query [rows, heads, D] → [rows, heads * D]."""
        raise NotImplementedError


def parts_of(
    shape: AttentionShape, slots: np.ndarray, starts: np.ndarray, counts: np.ndarray
) -> list[AttentionPart]:
    """Splits sequences, sorted by falling count, into parts whose rows follow each other. Padded ones are
    split where a count falls below half of the first's; short ones before those of a single token, and where
    padding would be more than they are.

    slots, starts, counts [N]: of each sequence, as in StepBatch.
    """
    parts: list[AttentionPart] = []
    first = row = 0
    while first < len(counts):
        longest = int(counts[first])
        if longest >= ALONE_TOKENS:
            parts.append(_Alone(shape, row, int(slots[first]), int(starts[first]), longest))
            first, row = first + 1, row + longest
            continue
        short = longest <= SHORT_TOKENS
        if short and longest > 1:
            last = first + _alike(counts[first:])
        else:
            half = -(-longest // 2)
            last = first + int(np.searchsorted(-counts[first:], -half, side="right"))
        rows_each = shape.heads * longest if short and longest > 1 else longest
        most = max(1, MASK_ELEMENTS // (rows_each * int((starts + counts)[first:last].max())))
        last = min(last, first + most)
        here = slice(first, last)
        rows = slice(row, row + int(counts[here].sum()))
        make = _Short if short else _Padded
        parts.append(make(shape, rows, slots[here], starts[here], counts[here]))
        first, row = last, rows.stop
    return parts


def _alike(counts: np.ndarray) -> int:
    """Counts the first of counts, which fall, that are above 1 and pad to no more than twice their sum."""
    several = counts[: int(np.searchsorted(-counts, -1))]
    padded = several[0] * np.arange(1, len(several) + 1)
    return int(np.argmin(np.append(padded <= 2 * np.cumsum(several), False)))


class _Alone(AttentionPart):
    """The prefill of one sequence."""

    def __init__(self, shape: AttentionShape, row: int, slot: int, start: int, count: int) -> None:
        self._shape, self._slot, self._length = shape, slot, start + count
        self.rows = slice(row, row + count)
        self._visible = None
        if start > 0:
            limits = torch.arange(start, start + count, device=shape.device)
            self._visible = torch.arange(self._length, device=shape.device) <= limits[:, None]

    def attend(self, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        shape, count = self._shape, query.shape[0]
        expanded = (shape.kv_heads, shape.group, self._length, shape.head_dim)
        out = F.scaled_dot_product_attention(
            query.transpose(0, 1).unflatten(0, (shape.kv_heads, shape.group)),
            keys[self._slot, :, None, : self._length].expand(expanded),
            values[self._slot, :, None, : self._length].expand(expanded),
            attn_mask=self._visible,
            is_causal=self._visible is None,
        )
        return out.permute(2, 0, 1, 3).reshape(count, -1)


class _Padded(AttentionPart):
    """Sequences of similar counts, padded to the longest."""

    def __init__(
        self, shape: AttentionShape, rows: slice, slots: np.ndarray, starts: np.ndarray, counts: np.ndarray
    ) -> None:
        self._shape, self.rows = shape, rows
        # Most queries of a sequence, and the length of the longest one.
        self._queries, self._length = int(counts.max()), int((starts + counts).max())
        low, high = int(slots.min()), int(slots.max()) + 1
        self._keys: slice | torch.Tensor
        if len(slots) >= VIEW_FRACTION * (high - low):
            # Places: of each sequence in the range of the cache that is read.
            places, self._keys = slots - low, slice(low, high)
            self._padded = high - low
        else:
            places, self._keys = np.arange(len(slots)), shape.on_device(slots)
            self._padded = len(slots)
        self._lay_out(places, starts, counts)

    def _lay_out(self, places: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> None:
        shape, queries = self._shape, self._queries
        # Indices from packed rows to padded ones, and back; None where they are the same.
        self._to_padded = self._to_packed = None
        if self._padded == len(counts) and (counts == queries).all() and (np.diff(places) == 1).all():
            # Every sequence has as many queries, in the cache's order: nothing to pad or move.
            limits = starts[:, None] + np.arange(queries)
        else:
            inside = np.minimum(np.arange(queries), counts[:, None] - 1)
            limits = np.zeros((self._padded, queries), dtype=np.int64)
            limits[places] = starts[:, None] + inside
            source = np.zeros((self._padded, queries), dtype=np.int64)
            source[places] = (np.cumsum(counts) - counts)[:, None] + inside
            self._to_padded = shape.on_device(source.reshape(-1))
            target = places[:, None] * queries + np.arange(queries)
            self._to_packed = shape.on_device(target[np.arange(queries) < counts[:, None]])
        self._mask(torch.arange(self._length, device=shape.device) <= shape.on_device(limits)[:, :, None])

    def _mask(self, visible: torch.Tensor) -> None:
        """visible [R, Q, L] bool → [R, 1, group * Q, L], or one that broadcasts to it."""
        if self._shape.group > 1 and self._queries > 1:
            visible = visible.repeat(1, self._shape.group, 1)
        self._visible = visible[:, None]

    def attend(self, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        shape = self._shape
        if self._to_padded is not None:
            query = query.index_select(0, self._to_padded)
        # [R, Q, kv, G, D] → [R, kv, G * Q, D]
        query = query.reshape(-1, self._queries, shape.kv_heads, shape.group, shape.head_dim)
        query = query.permute(0, 2, 3, 1, 4).flatten(2, 3)
        out = self._attend(query, self._rows(keys), self._rows(values))
        out = out.unflatten(2, (shape.group, self._queries)).permute(0, 3, 1, 2, 4)
        out = out.reshape(-1, shape.heads * shape.head_dim)
        return out if self._to_packed is None else out.index_select(0, self._to_packed)

    def _rows(self, cache: torch.Tensor) -> torch.Tensor:
        """Keys or values [R, kv, C or L, D] of the part's sequences: a view where those are a range of
        slots."""
        if isinstance(self._keys, slice):
            return cache[self._keys]
        return cache[:, :, : self._length].index_select(0, self._keys)

    def _attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        length = self._length
        return F.scaled_dot_product_attention(
            query, keys[:, :, :length], values[:, :, :length], attn_mask=self._visible
        )


class _Short(_Padded):
    """Sequences with few queries each, mostly one. On a CPU two batched products over the heads of all
    sequences read the cache once, at more than twice the speed of the fused kernel, which is made for many
    queries."""

    def _mask(self, visible: torch.Tensor) -> None:
        self._fused = self._shape.device.type != "cpu" or self._padded <= FUSED_SEQUENCES
        if self._fused:
            super()._mask(visible)
            return
        bias = torch.zeros(visible.shape, dtype=torch.float32).masked_fill_(~visible, float("-inf"))
        if self._queries > 1:
            bias = bias.repeat(1, self._shape.group, 1)
        # [R * kv, 1 or group * Q, L]
        self._bias = bias.repeat_interleave(self._shape.kv_heads, 0)

    def _attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if self._fused:
            return super()._attend(query, keys, values)
        query, scale = query.flatten(0, 1), query.shape[-1] ** -0.5
        keys = keys.flatten(0, 1)[:, : self._length]
        values = values.flatten(0, 1)[:, : self._length]
        if query.dtype == torch.float32:
            bias = self._bias.expand(-1, query.shape[1], -1)
            scores = torch.baddbmm(bias, query, keys.transpose(1, 2), alpha=scale)
        else:
            # Keys first: the product's second factor is copied into a layout of its own, so let it be
            # the small one.
            scores = torch.bmm(keys, query.transpose(1, 2)).transpose(1, 2).float()
            scores = scores.mul_(scale).add_(self._bias)
        out = torch.bmm(torch.softmax(scores, -1).to(values.dtype), values)
        return out.unflatten(0, (-1, self._shape.kv_heads))


# --- deterministic ----------------------------------------------------------------------------------

# Queries of one sequence that attend together: aligned, so that a position has the same place in a block, and
# the block the same shape, whatever is computed with it.
ALIGNED = 16


class _Aligned(AttentionPart):
    """The queries of one aligned block of positions of one sequence."""

    def __init__(self, shape: AttentionShape, row: int, slot: int, start: int, count: int) -> None:
        self._shape, self._slot = shape, slot
        self.rows = slice(row, row + count)
        first = start // ALIGNED * ALIGNED
        self._place = slice(start - first, start - first + count)
        self._length = first + ALIGNED
        limits = torch.arange(first, self._length, device=shape.device)
        visible = torch.arange(self._length, device=shape.device) <= limits[:, None]
        self._visible = visible.repeat(shape.group, 1)[None, None]

    def attend(self, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        shape, count = self._shape, query.shape[0]
        block = query.new_zeros((shape.kv_heads, shape.group, ALIGNED, shape.head_dim))
        block[:, :, self._place] = query.transpose(0, 1).unflatten(0, (shape.kv_heads, shape.group))
        out = F.scaled_dot_product_attention(
            block.flatten(1, 2)[None],
            keys[self._slot, None, :, : self._length],
            values[self._slot, None, :, : self._length],
            attn_mask=self._visible,
        )
        out = out[0].unflatten(1, (shape.group, ALIGNED))[:, :, self._place]
        return out.permute(2, 0, 1, 3).reshape(count, -1)


def aligned_parts(
    shape: AttentionShape, slots: np.ndarray, starts: np.ndarray, counts: np.ndarray
) -> list[AttentionPart]:
    """Like `parts_of`, but what a query attends to, and in which shapes, depends on its own sequence and
    position alone. The cache must hold ALIGNED rows past a sequence's end that are finite."""
    parts: list[AttentionPart] = []
    row = 0
    for slot, start, count in zip(slots.tolist(), starts.tolist(), counts.tolist(), strict=True):
        position, stop = start, start + count
        while position < stop:
            end = min(stop, (position // ALIGNED + 1) * ALIGNED)
            parts.append(_Aligned(shape, row, slot, position, end - position))
            row, position = row + end - position, end
    return parts
