"""The order in which an owner's reads start, and how much may be in flight from one peer. Pure.

    blocks ─► requests: what one peer gives for one priority, at most `credit_bytes` each
           ─► sorted: priority, wave (a peer's first, second, …), peers in turn from the reader's own

What is needed first (the first micro-batch) is requested first; every peer is read from at once, each for one
request after the other, hence no more bytes than its credit; readers begin at different peers, so that none
serves all of them first. Requests stay arrays of ranges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from earl.dispatch.plan.class_plan import CopyBlock, Reads
from earl.errors import LayoutError


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequests:
    """N requests in the order in which to start them.

    Request i is copies of block[i]: tensors[i, 0]:tensors[i, 1] of its tensors, each with
    rows[i, 0]:rows[i, 1] of the block's rows in the order `orders[block[i]]`. block, peer, priority:
    int32[N]; tensors, rows: int64[N, 2]; size_bytes: int64[N].
    """

    reads: Reads
    orders: tuple[np.ndarray, ...]
    block: np.ndarray
    peer: np.ndarray
    priority: np.ndarray
    tensors: np.ndarray
    rows: np.ndarray
    size_bytes: np.ndarray

    def __len__(self) -> int:
        return len(self.block)

    def copies(self, request: int) -> tuple[CopyBlock, np.ndarray, np.ndarray]:
        """(block, tensors int64[T], rows int64[G] of the block) of one request: every pair is a copy."""
        number = int(self.block[request])
        block = self.reads.blocks[number]
        tensors, rows = slice(*self.tensors[request].tolist()), slice(*self.rows[request].tolist())
        return block, block.tensors[tensors], self.orders[number][rows]


def schedule(reads: Reads, credit_bytes: int, *, first_peer: int = 0) -> ReadRequests:
    """Splits an owner's reads into requests of at most credit_bytes (a copy above that stands alone).

    first_peer: the peer to read from first, different for each reader. Raises LayoutError for no credit.
    """
    if credit_bytes < 1:
        raise LayoutError(f"credit of {credit_bytes} bytes", "allow at least one")
    orders: list[np.ndarray] = []
    parts: list[np.ndarray] = []
    for number, block in enumerate(reads.blocks):
        order = np.lexsort((block.peer, block.priority))
        orders.append(order)
        peer, priority = block.peer[order], block.priority[order]
        bounds = np.flatnonzero((np.diff(peer) != 0) | (np.diff(priority) != 0)) + 1
        elements = np.cumsum(block.elements[order])
        for first, last in zip([0, *bounds.tolist()], [*bounds.tolist(), len(order)], strict=True):
            if first < last:
                split = _split(block, elements, first, last, credit_bytes)
                head = np.array([[number, peer[first], priority[first]]], np.int64)
                parts.append(np.hstack([np.repeat(head, len(split), axis=0), split]))
    table = np.concatenate([np.zeros((0, 8), np.int64), *parts])
    peer, priority = table[:, 1], table[:, 2]
    turn = (peer - first_peer) % max(len(reads.owners), 1)
    order = np.lexsort((np.arange(len(table)), turn, _wave(peer, priority), priority))
    table = table[order]
    return ReadRequests(
        reads,
        tuple(orders),
        table[:, 0].astype(np.int32),
        table[:, 1].astype(np.int32),
        table[:, 2].astype(np.int32),
        table[:, 3:5],
        table[:, 5:7],
        table[:, 7],
    )


def _split(block: CopyBlock, elements: np.ndarray, first: int, last: int, credit_bytes: int) -> np.ndarray:
    """int64[N, 5]: tensor range, row range, bytes, that together are rows first:last of every tensor.

    elements: int64[G], cumulative over the rows.
    """
    before = int(elements[first - 1]) if first else 0
    each = int(elements[last - 1]) - before
    requests: list[tuple[int, int, int, int, int]] = []
    item_bytes = np.cumsum(block.item_bytes)
    tensor = 0
    while tensor < len(item_bytes):
        done = int(item_bytes[tensor - 1]) if tensor else 0
        stop = int(np.searchsorted(item_bytes, done + credit_bytes // each, "right"))
        if stop > tensor:
            requests.append((tensor, stop, first, last, each * (int(item_bytes[stop - 1]) - done)))
            tensor = stop
            continue
        # Not even one tensor's rows fit: split these by rows.
        item = int(block.item_bytes[tensor])
        row, base = first, before
        while row < last:
            end = int(np.searchsorted(elements[:last], base + credit_bytes // item, "right"))
            end = max(end, row + 1)
            requests.append((tensor, tensor + 1, row, end, item * (int(elements[end - 1]) - base)))
            row, base = end, int(elements[end - 1])
        tensor += 1
    return np.array(requests, np.int64).reshape(-1, 5)


def _wave(peer: np.ndarray, priority: np.ndarray) -> np.ndarray:
    """int64[N]: how many requests of the same peer and priority stand before each."""
    order = np.lexsort((np.arange(len(peer)), peer, priority))
    sorted_peer, sorted_priority = peer[order], priority[order]
    new = np.ones(len(peer), bool)
    new[1:] = (np.diff(sorted_peer) != 0) | (np.diff(sorted_priority) != 0)
    index = np.arange(len(peer))
    wave = np.empty(len(peer), np.int64)
    wave[order] = index - np.maximum.accumulate(np.where(new, index, 0))
    return wave
