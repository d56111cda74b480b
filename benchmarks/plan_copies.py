"""The input and the output of a plan of the data plane, spelled out: packed sequences, and each copy.

Owners hold sequences end to end, which are the index that `plan_batch` reads; a request's ranges become one
row for each copy. The product's owners publish a record for each sequence instead, and its readers never
need all copies at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from earl.dispatch.plan.schedule import ReadRequests
from earl.dispatch.plan.sequence_plan import RaggedIndex
from earl.errors import LayoutError, LayoutOverlap


@dataclass(frozen=True, slots=True, eq=False)
class PackedSequences:
    """The sequences of one owner: int64[B] end to end in its columns, offsets int64[B + 1] in rows."""

    owner: str
    sequences: np.ndarray
    offsets: np.ndarray


def ragged_index(held: Sequence[PackedSequences], *, replicas: bool = False) -> RaggedIndex:
    """The index of what these owners hold.

    Raises LayoutOverlap where two of them hold a sequence and replicas are not allowed, LayoutError.
    """
    counts = np.array([len(packed.sequences) for packed in held], np.int64)
    for packed, count in zip(held, counts.tolist(), strict=True):
        if len(packed.offsets) != count + 1:
            raise LayoutError(
                f"{packed.owner}: {count} sequences with {len(packed.offsets)} offsets",
                "give one offset more",
            )
    empty = np.zeros(0, np.int64)
    sequence = np.concatenate([empty, *(packed.sequences for packed in held)])
    start = np.concatenate([empty, *(packed.offsets[:-1] for packed in held)])
    length = np.concatenate([empty, *(packed.offsets[1:] for packed in held)]) - start
    peer = np.repeat(np.arange(len(held), dtype=np.int32), counts)
    if (length < 0).any() or (start < 0).any():
        i = int(np.flatnonzero((length < 0) | (start < 0))[0])
        raise LayoutError(
            f"{held[peer[i]].owner}: sequence {sequence[i]} of {length[i]} rows from {start[i]}",
            "offsets start at 0 and never fall",
        )
    order = np.lexsort((peer, sequence))
    index = RaggedIndex(
        tuple(packed.owner for packed in held), sequence[order], peer[order], start[order], length[order]
    )
    _check(index, replicas)
    return index


def _check(index: RaggedIndex, replicas: bool) -> None:
    twice = np.flatnonzero(index.sequence[1:] == index.sequence[:-1])
    refused = twice[index.peer[twice] == index.peer[twice + 1]] if replicas else twice
    if len(refused):
        i = int(refused[0])
        first, second = index.owners[index.peer[i]], index.owners[index.peer[i + 1]]
        stop = index.start[i] + index.length[i]
        raise LayoutOverlap(
            f"{first} and {second} both hold sequence {index.sequence[i]}, [{index.start[i]}:{stop}]",
            "give every sequence to one owner, or say that replicas may be",
        )
    wrong = twice[index.length[twice] != index.length[twice + 1]]
    if len(wrong):
        i = int(wrong[0])
        raise LayoutError(
            f"sequence {index.sequence[i]} has {index.length[i]} rows at {index.owners[index.peer[i]]}, "
            f"{index.length[i + 1]} at {index.owners[index.peer[i + 1]]}",
            "replicas must be the same sequence",
        )


@dataclass(frozen=True, slots=True, eq=False)
class RequestCopies:
    """C copies from one peer: tensor int64[C]; source, target, extent int64[C, R], as in Block."""

    tensor: np.ndarray
    source: np.ndarray
    target: np.ndarray
    extent: np.ndarray


def copies_of(requests: ReadRequests, request: int) -> RequestCopies:
    """Every copy of one request as arrays; made again at each call."""
    block, tensors, rows = requests.copies(request)
    each = np.tile(rows, len(tensors))
    return RequestCopies(
        np.repeat(tensors, len(rows)), block.source[each], block.target[each], block.extent[each]
    )
