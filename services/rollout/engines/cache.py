"""The KV cache of one rank: rows of slots, backed by memory only where they were written.

    keys, values of a layer: [slots, kv_heads, rows, head_dim]

On a CPU the cache is one anonymous mapping without reserve: a page costs memory from its first write
until `give_back`. Slots' rows are padded so that rows [n * page_tokens, ...) of a head begin a page;
what is committed is therefore exact in pages. On other devices the tensor is allocated whole, and the
caller sizes it by its bound (`room_within`).
"""

from __future__ import annotations

import math
import mmap

import torch

from services.rollout.engines.attention import ALIGNED

PAGE_BYTES = mmap.PAGESIZE
# Linux's MAP_NORESERVE; Python names it from 3.13 on.
_NORESERVE = 0x4000


def room_within(kv_tokens: int, slots: int, context: int, device: torch.device) -> tuple[int, int]:
    """(slots, rows of each) that the cache is made with: all of them where memory is committed page by
    page (CPU), elsewhere as many whole contexts as kv_tokens hold (0: no bound), one of them at least."""
    if device.type == "cpu" or kv_tokens == 0:
        return slots, context
    context = min(context, kv_tokens)
    return min(slots, kv_tokens // context), context


class KvCache:
    """Rows of KV. Rows that were never written, or were given back, read as zeros."""

    def __init__(
        self,
        layers: int,
        slots: int,
        context: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._row_bytes = head_dim * dtype.itemsize
        # Memory is committed in multiples of so many tokens of a sequence.
        self.page_tokens = PAGE_BYTES // math.gcd(PAGE_BYTES, self._row_bytes) if device.type == "cpu" else 1
        # Rows of a slot: the context, rounded up to whole pages and aligned blocks of attention.
        multiple = math.lcm(self.page_tokens, ALIGNED)
        self.rows = -(-context // multiple) * multiple
        shape = (layers, 2, slots, kv_heads, self.rows, head_dim)
        self._mapping: mmap.mmap | None = None
        if device.type == "cpu":
            self._mapping = mmap.mmap(
                -1,
                math.prod(shape) * dtype.itemsize,
                flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE,
            )
            # A huge page would be committed whole for one row of it.
            self._mapping.madvise(mmap.MADV_NOHUGEPAGE)
            self._all = torch.frombuffer(self._mapping, dtype=dtype).view(shape)
        else:
            self._all = torch.zeros(shape, dtype=dtype, device=device)
        # Per layer, [slots, kv_heads, rows, head_dim].
        self.keys = [self._all[layer, 0] for layer in range(layers)]
        self.values = [self._all[layer, 1] for layer in range(layers)]
        # Bytes of one token of a sequence, over all layers.
        self.token_bytes = layers * 2 * kv_heads * self._row_bytes

    def copy(self, source: int, target: int, count: int) -> None:
        """The first `count` rows of slot `source` become those of slot `target`."""
        self._all[:, :, target, :, :count].copy_(self._all[:, :, source, :, :count])

    def give_back(self, slot: int, first: int, stop: int) -> None:
        """Rows [first, stop) of the slot, multiples of page_tokens, are zeros again and take no memory
        (on a CPU)."""
        stop = min(stop, self.rows)
        if self._mapping is None:
            self._all[:, :, slot, :, first:stop].zero_()
            return
        layers, _, slots, heads = self._all.shape[:4]
        head_bytes = self.rows * self._row_bytes
        begin, length = first * self._row_bytes, (stop - first) * self._row_bytes
        if length <= 0:
            return
        for block in range(slot, layers * 2 * slots, slots):
            for head in range(heads):
                at = (block * heads + head) * head_bytes + begin
                self._mapping.madvise(mmap.MADV_DONTNEED, at, length)
