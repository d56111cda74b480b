"""The KV cache of one rank: rows of slots, backed by memory only where they were written.

    keys, values of a layer: [slots, kv_heads, rows, head_dim]

On a CPU the cache is one anonymous mapping without reserve: a page costs memory from its first write
until `give_back`. Slots' rows are padded so that rows [n * page_tokens, ...) of a head begin a page;
what is committed is therefore exact in pages. On other devices the tensor is allocated whole, and the
caller sizes it by its bound (`rows_within`).
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from earl.dispatch.describe.dtypes import numpy_dtype
from services.rollout.engines.torch.attention import ALIGNED
from services.rollout.engines.torch.kv_handover import SlotRows

PAGE_BYTES = mmap.PAGESIZE
# Linux's MAP_NORESERVE; Python names it from 3.13 on.
_NORESERVE = 0x4000


def rows_within(kv_tokens: int, slots: int, context: int, device: torch.device) -> tuple[int, int]:
    """(slots, rows of each) that the cache is made with: all of them where memory is committed page by
    page (CPU), elsewhere as many whole contexts as kv_tokens hold (0: no bound), one of them at least."""
    if device.type == "cpu" or kv_tokens == 0:
        return slots, context
    context = min(context, kv_tokens)
    return min(slots, kv_tokens // context), context


class KvCache:
    """The KV of `slots` slots of `context` tokens. Rows that were never written, or were given back, read as
    zeros."""

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
        self._device, self._dtype = device, dtype
        self.item_bytes = dtype.itemsize
        # What carries rows on the host, and all of them in place there: [layers, 2, slots, kv_heads, rows,
        # head_dim]; None if the cache is on another device.
        self.host_dtype = numpy_dtype(str(dtype).removeprefix("torch."))
        self.host: np.ndarray | None = None
        self._mapping: mmap.mmap | None = None
        if device.type == "cpu":
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            self._mapping = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=flags)
            # A huge page would be committed whole for one row of it.
            self._mapping.madvise(mmap.MADV_NOHUGEPAGE)
            self._all = torch.frombuffer(self._mapping, dtype=dtype).view(shape)
            self.host = np.frombuffer(self._mapping, self.host_dtype).reshape(shape)
        else:
            self._all = torch.zeros(shape, dtype=dtype, device=device)
        # Per layer, [slots, kv_heads, rows, head_dim].
        self.keys = [self._all[layer, 0] for layer in range(layers)]
        self.values = [self._all[layer, 1] for layer in range(layers)]
        # Bytes of one token of a sequence, over all layers.
        self.token_bytes = layers * 2 * kv_heads * self._row_bytes

    def release(self) -> None:
        """Returns the memory of all rows, which nothing reads or writes until `take_memory`."""
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)
        else:
            self._all.untyped_storage().resize_(0)

    def take_memory(self) -> None:
        """Has memory for all rows again; they read as zeros."""
        if self._mapping is None:
            self._all.untyped_storage().resize_(self._all.numel() * self._all.element_size())
            self._all.zero_()

    def copy(self, source: int, target: int, count: int) -> None:
        """The first `count` rows of slot `source` become those of slot `target`."""
        self._all[:, :, target, :, :count].copy_(self._all[:, :, source, :, :count])

    # --- for other engines; the offsets of rows play no part: they lie end to end ------------------

    def copy_out(self, rows: Sequence[SlotRows], into: np.ndarray, stop: threading.Event) -> None:
        """Copies the rows into [layers, 2, kv_heads, tokens, head_dim], during the steps; returns early if
        `stop` is set."""
        with self._copy_stream():
            for part, target in zip(rows, _end_to_end(rows, into), strict=True):
                if stop.is_set():
                    return
                if self.host is not None:
                    np.copyto(target, self.host[:, :, part.slot, :, part.first : part.first + part.count])
                else:
                    torch.from_numpy(target).view(self._dtype).copy_(self._rows(part))

    def copy_in(self, rows: Sequence[SlotRows], source: np.ndarray, stop: threading.Event) -> None:
        """The reverse of `copy_out`, into rows that no step reads."""
        with self._copy_stream():
            for part, values in zip(rows, _end_to_end(rows, source), strict=True):
                if stop.is_set():
                    return
                self._rows(part).copy_(torch.from_numpy(values).view(self._dtype))

    def places(self, rows: Sequence[SlotRows], staging: np.ndarray | None) -> list[np.ndarray]:
        """Writable arrays of the rows: in place on the host, else of the staging array for `copy_in`."""
        if self.host is None:
            assert staging is not None
            return list(_end_to_end(rows, staging))
        return [self.host[:, :, part.slot, :, part.first : part.first + part.count] for part in rows]

    def _rows(self, rows: SlotRows) -> torch.Tensor:
        return self._all[:, :, rows.slot, :, rows.first : rows.first + rows.count]

    @contextlib.contextmanager
    def _copy_stream(self) -> Iterator[None]:
        """Runs copies on a CUDA stream of their own: after all work that steps have begun, and waits for
        their end."""
        if self._device.type == "cpu":
            yield
            return
        torch.cuda.synchronize(self._device)
        stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()

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
                offset = (block * heads + head) * head_bytes + begin
                self._mapping.madvise(mmap.MADV_DONTNEED, offset, length)


def _end_to_end(rows: Sequence[SlotRows], array: np.ndarray) -> Iterator[np.ndarray]:
    """The part of [layers, 2, kv_heads, tokens, head_dim] that belongs to each of the rows."""
    offset = 0
    for part in rows:
        yield array[:, :, :, offset : offset + part.count]
        offset += part.count
