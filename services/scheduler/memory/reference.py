"""Memory of a reference rank: a frozen decoder, one forward pass at a time. Pure.

On a CPU every large tensor is mapped by itself (services.trainer.ranks.runtime.map_large_blocks): resident is
what is in use. CUDA's allocator keeps what was freed: hence a margin, and among the logits the
product in the compute dtype.

services/trainer/reference/policy.py: each micro-batch through earl/models/module.py without gradients, its
log-probs chunk by chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.memory.numbers import ModelNumbers
from services.scheduler.memory.parts import (
    ROW_BYTES,
    WIDE_BYTES,
    MemoryParts,
    MicrobatchRows,
    chunk_elements,
    largest,
)

# Share of what a pass needs by these terms that it took besides, of three cases on an H200: 0.08 to 0.40. The
# allocator kept half of that; what the rest is, is not known.
MARGIN_CARD = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceNumbers(MicrobatchRows):
    """Settings of a rank that computes log-probs."""

    device: str
    item_bytes: int


def reference_memory(model: ModelNumbers, how: ReferenceNumbers) -> MemoryParts:
    """The moment of a forward pass at which most is there."""
    return largest((_forward(model, how), _logprobs(model, how)))


def score_memory(model: ModelNumbers, how: ReferenceNumbers) -> MemoryParts:
    """The forward pass of a model that gives one number for each sequence: it has no log-probs."""
    return _forward(model, how)


def _forward(model: ModelNumbers, how: ReferenceNumbers) -> MemoryParts:
    """One block's (module.py): norm, attention or MLP, in addition to the residual stream."""
    hidden, query, key, inner = model.hidden, model.query, model.key, model.intermediate
    # The stream twice and its norm; queries and keys before and after rotation, one product each.
    rotating = (3 * hidden + 3 * query + 4 * key) * how.rows
    # Keys and values as attention reads them; the output; copies of all where rows are moved.
    wide = model.attended(how.device, how.item_bytes)
    copies = query + 2 * key if how.moved else 0
    attending = (2 * hidden + query + 2 * key) * how.rows + (2 * query + 2 * wide + copies) * how.padded
    # The stream twice, its norm; gate, up and their product, of which the product stays beside the output.
    mlp = (3 * hidden + max(3 * inner, hidden + inner)) * how.rows
    activations = how.item_bytes * max(rotating, attending, mlp)
    if how.item_bytes < WIDE_BYTES:
        # _RMSNorm: stream and result, and in float32 the stream and its product.
        norm = (3 * how.item_bytes + 2 * WIDE_BYTES) * hidden * how.rows
        activations = max(activations, norm)
    tables = 2 * how.item_bytes * model.head_dim * how.rows
    return _moment("forward", model, how, activations + tables)


def _logprobs(model: ModelNumbers, how: ReferenceNumbers) -> MemoryParts:
    """A chunk and its exponentials; on CUDA, where it is narrower, also the product (logprobs.py)."""
    narrow = how.item_bytes if how.item_bytes < WIDE_BYTES and how.device != "cpu" else 0
    logits = (2 * WIDE_BYTES + narrow) * chunk_elements(model.vocab, how.trained_rows, how.device)
    # What the last norm gives, and the rows of it that are wanted.
    hidden = how.item_bytes * model.hidden * (how.rows + how.trained_rows)
    return _moment("log-probs", model, how, hidden, logits)


def _moment(
    name: str, model: ModelNumbers, how: ReferenceNumbers, activations: int, logits: int = 0
) -> MemoryParts:
    return MemoryParts(
        moment=name,
        weights=how.item_bytes * model.elements(),
        activations=activations + ROW_BYTES * how.rows,
        logits=logits,
        margin=0 if how.device == "cpu" else int(MARGIN_CARD * (activations + logits)),
    )
