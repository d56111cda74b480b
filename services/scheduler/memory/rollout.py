"""Memory of an engine's rank: weights, KV, and one step; a version is applied from shared memory. Pure.

    the trainer's slot ─► weights, on a CPU a second time in the layout that multiplies fastest
    step: up to `step_tokens` rows through the layers (with their KV) ─► logits of each sequence ─► sampling

Terms are the torch engine's: runner, linear, cache, slots, attention and sampling in
services/rollout/engines. vLLM and SGLang differ in that they split the embedding too and take their KV cache
whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from earl.draft_figures import DRAFTED_ROWS
from services.scheduler.memory.numbers import ModelNumbers
from services.scheduler.memory.parts import MARGIN, WIDE_BYTES, MemoryParts, ceil_div, largest, together

# linear's PACK_ELEMENTS and KEPT_PRODUCTS, model_runner.FIRST_POSITIONS, kv_cache.PAGE_BYTES,
# attention.ALIGNED and engine.PREFILL_TOKENS of services/rollout/engines/torch; core.BLOCK_TOKENS of
# services/rollout/engines/vllm.
PACK_ELEMENTS = 1 << 17
KEPT_PRODUCTS = 48
FIRST_POSITIONS = 1024
PAGE_BYTES = 4096
ALIGNED = 16
STEP_TOKENS = {"cpu": 1024, "cuda": 8192}
BLOCK_TOKENS = 32
# sampling.BLOCK: logits are padded to whole blocks.
SAMPLE_BLOCK = 128
# filters.SORTED_ELEMENTS: scores that top-k and top-p sort at once, and bytes of each meanwhile: its own,
# those of its place in the order and of its weight in float64, and what sorting needs.
SORTED_ELEMENTS = 1 << 21
SORTED_BYTES = 40
# A product that oneDNN has compiled, in bfloat16 for AVX-512.
PRODUCT_BYTES = 600 << 10
# SlotTable of engines/torch: tokens, log-probs and versions of every position.
COLUMN_BYTES = 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class RolloutNumbers:
    """Settings of an engine that generates.

    native: the torch engine. packs: it keeps large matrices a second time, on a CPU. item_bytes: of what it
    computes in. slots, context, kv_tokens (0: slots x context): what its cache is made for. sequences: in it
    at once, each of `length` tokens. drafts: a step samples from rows of drafted tokens, too. sorts: top-k or
    top-p filters what it samples from.
    """

    device: str
    native: bool
    packs: bool
    tp: int
    item_bytes: int
    slots: int
    context: int
    kv_tokens: int
    sequences: int
    length: int
    drafts: bool = False
    sorts: bool = False

    @property
    def sampled(self) -> int:
        """Rows of a step that are sampled from, at most."""
        return self.sequences + (DRAFTED_ROWS if self.drafts else 0)


def rollout_memory(model: ModelNumbers, how: RolloutNumbers) -> MemoryParts:
    """The moment of a step at which most is there. model: fused. Of rank 0, which samples too."""
    moments = _moments(model, how)
    return together(moments) if how.device == "cpu" else largest(moments)


def kv_bytes(model: ModelNumbers, how: RolloutNumbers) -> int:
    """Keys and values of every layer.

    On a CPU the torch engine's pages of what is written, up to the bound (KvCache, KvBudget); elsewhere the
    whole cache, which is allocated at the start.
    """
    row_bytes = model.head_dim * how.item_bytes
    token_bytes = model.layers * 2 * model.kv_heads * row_bytes
    bound = how.kv_tokens or how.slots * how.context
    if not how.native:
        whole = max(bound, how.context)
        return token_bytes * ceil_div(whole, BLOCK_TOKENS) * BLOCK_TOKENS
    if how.device != "cpu":
        context = min(how.context, bound)
        slots = min(how.slots, bound // context)
        return token_bytes * slots * ceil_div(context, ALIGNED) * ALIGNED
    page = PAGE_BYTES // math.gcd(PAGE_BYTES, row_bytes)
    # Beyond the bound the youngest sequences are put back.
    return token_bytes * min(how.sequences * ceil_div(how.length, page) * page, bound + page * how.slots)


def weight_bytes(model: ModelNumbers, how: RolloutNumbers) -> int:
    """ModelRunner.weights, tables of positions, and on a CPU Linear's copies in blocked layout."""
    table = model.vocab * model.hidden
    parameters = model.elements()
    if not how.native:
        parameters -= (1 if model.tied else 2) * (table - table // how.tp)
    # They double as contexts grow.
    tables = 2 * min(how.context, max(FIRST_POSITIONS, 2 * how.length)) * model.head_dim
    blocked = _blocked(model, how)
    # Each is made again before the old one goes.
    copies = sum(blocked) + max(blocked, default=0)
    return how.item_bytes * (parameters + tables + copies)


def _blocked(model: ModelNumbers, how: RolloutNumbers) -> list[int]:
    """Elements of the matrices that Linear.pack keeps a second time."""
    if how.device != "cpu" or not how.native or not how.packs:
        return []
    matrices = [math.prod(shape) for shape in model.block if len(shape) > 1] * model.layers
    return [size for size in (*matrices, model.vocab * model.hidden) if size >= PACK_ELEMENTS]


def _product_bytes(how: RolloutNumbers) -> int:
    """Products that oneDNN keeps compiled where it multiplies in bfloat16, once all have been needed."""
    multiplies = how.device == "cpu" and how.native and how.packs and how.item_bytes < WIDE_BYTES
    return KEPT_PRODUCTS * PRODUCT_BYTES if multiplies else 0


def _moments(model: ModelNumbers, how: RolloutNumbers) -> Iterator[MemoryParts]:
    item = how.item_bytes
    weights, kv = weight_bytes(model, how) + _product_bytes(how), kv_bytes(model, how)
    if how.device == "cpu":
        kv += COLUMN_BYTES * how.sequences * how.length
    all_tokens = how.sequences * how.length
    rows = max(how.sequences, min(STEP_TOKENS[how.device], all_tokens))

    def moment(name: str, activations: int, logits: int = 0) -> MemoryParts:
        return MemoryParts(
            moment=name,
            weights=weights,
            kv=kv,
            activations=activations,
            logits=logits,
            margin=int(MARGIN * (activations + logits)),
        )

    yield moment("prefill", layer_bytes(model, item, rows, attention=_prefill_attention(model, how, rows)))
    yield moment("decoding", layer_bytes(model, item, how.sampled, attention=_decode_attention(model, how)))
    padded = ceil_div(model.vocab, SAMPLE_BLOCK) * SAMPLE_BLOCK
    # Logits, those of the sequences that are complete, weights in float32, those padded.
    wide = item * 2 + WIDE_BYTES + (WIDE_BYTES if padded > model.vocab else 0)
    logits = how.sampled * padded * wide + sorting_bytes(model.vocab, how)
    yield moment("sampling", item * model.hidden * rows, logits)


def sorting_bytes(vocab: int, how: RolloutNumbers) -> int:
    """filters.drop_improbable: as many rows at once as have SORTED_ELEMENTS scores, one at least."""
    rows = min(how.sampled, max(1, SORTED_ELEMENTS // vocab))
    return rows * vocab * SORTED_BYTES if how.sorts else 0


def layer_bytes(model: ModelNumbers, item: int, rows: int, attention: int) -> int:
    """ModelRunner._block: queries, keys and values stay until its end, with attention's or the MLP's memory.

    attention: bytes of its own.
    """
    hidden, query, key, inner = model.hidden, model.query, model.key, model.intermediate
    held = 2 * hidden + query + 2 * key + 2 * model.head_dim
    rotating = hidden + 3 * (query + key)
    attending = 2 * query + 2 * key
    finishing = 2 * hidden + query + 3 * inner
    index = 8 * (model.kv_heads + 4)
    return rows * (item * (held + max(rotating, finishing)) + index) + max(
        0, attention + rows * item * (attending - max(rotating, finishing))
    )


def _prefill_attention(model: ModelNumbers, how: RolloutNumbers, rows: int) -> int:
    """attention._Alone: where a prefill continues, which positions a query sees, as bool and in the dtype."""
    # The oldest sequence gets at least half of a step: up to that length none is split.
    if not how.native or how.length <= STEP_TOKENS[how.device] // 2:
        return 0
    return min(rows, how.length) * how.length * (1 + how.item_bytes)


def _decode_attention(model: ModelNumbers, how: RolloutNumbers) -> int:
    """attention._Short: scores and their softmax in float32, in between the mask for every key head."""
    if how.device != "cpu" or not how.native:
        return 0
    scores = 2 * WIDE_BYTES * model.heads + WIDE_BYTES * model.kv_heads + 1 + WIDE_BYTES
    if how.item_bytes < WIDE_BYTES:
        # Keys and values in a layout of the product's own, and the softmax narrowed.
        scores += how.item_bytes * (2 * model.key + model.heads)
    # Drafts are padded to twice their rows, at most.
    return how.sampled * (2 if how.drafts else 1) * how.length * scores
