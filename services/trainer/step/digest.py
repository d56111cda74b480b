"""Digests of what a deterministic run trains on and of what comes of it: two runs are compared by them.

A digest is a whole number below 2**53, so that it passes through a metric (float64) unharmed. Equal
digests of a step mean equal bits, as far as 53 bits can tell.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
import xxhash

from services.trainer.model.sharded_policy import Shard
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.rank_mesh import RankMesh
from services.trainer.step.batch import Columns

BITS = 53


def batch_digests(columns: Columns, mesh: RankMesh) -> dict[str, float]:
    """Digests of the whole batch, the same whatever rank has which sequence. A collective.

    tokens_digest: tokens and mask. batch_digest: log-probs, those under frozen policies and advantages too.
    """
    roles = columns.roles.values()
    mine = []
    for i, item in enumerate(columns.items if mesh.counts else ()):
        span = slice(int(columns.offsets[i]), int(columns.offsets[i + 1]))
        tokens = _of([columns.tokens[span], columns.loss_mask[span]])
        rest = _of([columns.logprobs[span], *(column[span] for column in roles)])
        mine.append(struct.pack("<QQQd", item.position, tokens, rest, item.advantage))
    size = struct.calcsize("<QQQd")
    joined = b"".join(mesh.group.gather(b"".join(mine)))
    rows = sorted(struct.unpack_from("<QQQd", joined, offset) for offset in range(0, len(joined), size))
    return {
        "tokens_digest": _number(b"".join(struct.pack("<Q", row[1]) for row in rows)),
        "batch_digest": _number(b"".join(struct.pack("<QQd", *row[1:]) for row in rows)),
    }


def weights_digest(shards: Sequence[Shard], group: Group) -> float:
    """A digest of all parameters in float32; groups of another parallelism have another. A collective."""
    # From copies: torch does not resize a storage that numpy has seen (state_offload.py).
    mine = _of(shard.local.detach().to("cpu", copy=True).numpy() for shard in shards)
    return _number(b"".join(group.gather(struct.pack("<Q", mine))))


def _of(arrays: Iterable[np.ndarray]) -> int:
    digest = xxhash.xxh3_64()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
    return digest.intdigest()


def _number(data: bytes) -> float:
    return float(xxhash.xxh3_64_intdigest(data) >> (64 - BITS))
