"""Memory of a trainer's rank: blocks split over tp, FSDP2 over the rest, packed micro-batches. Pure.

    parameters ─ gathered in the compute dtype ─► forward, block by block: activations are kept
        ─► log-probs, chunk by chunk ─► backward: activations go, gradients come ─► AdamW

What is there at each of these moments follows from services/trainer/{ranks,model,step,reshard}/,
from earl/models/{module,fused,packing,logprobs,lora}.py, and from FSDP2 as torch 2.13 has it
(torch/distributed/fsdp/_fully_shard).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from services.scheduler.memory.numbers import ModelNumbers, Shapes, elements
from services.scheduler.memory.parts import (
    MARGIN,
    ROW_BYTES,
    WIDE_BYTES,
    MemoryParts,
    MicrobatchRows,
    chunk_elements,
    largest,
)

# services.trainer.publish.weight_slots.SLOTS.
SLOTS = 2
# AdamW keeps two moments in float32.
MOMENTS = 2
# On a CPU freed memory stays in holes: glibc's memalign asks for more than it uses, so that a freed tensor's
# memory does not serve the next one of the same size, and FSDP2 makes tensors of one size for every block.
# Measured with glibc 2.36 (`earl bench memory-model`), as copies of all parameters: in float32 (gradients and
# what is reduced), with one rank and with several; and in the compute dtype what several ranks gather, more
# of it where activations are computed again in between.
HOLES_ALONE, HOLES_REDUCED = 2.4, 1.1
HOLES_GATHERED, HOLES_GATHERED_AGAIN = 2.0, 2.4
# In float32 once more where ranks exchange activations, around attention (cp) or after every block's halves
# (tp): those lie in between. With cp they are computed again in between, too: one case took 287 MiB once and
# 350 to 364 MiB other times.
HOLES_EXCHANGED, HOLES_EXCHANGED_AGAIN = 0.4, 0.9
# Where activations are larger than parameters, they decide: a share of all, with one rank and with several.
# Where blocks are computed again, each leaves holes of its own: of all blocks, the gradients in the MLP's
# backward pass.
HOLES_KEPT, HOLES_KEPT_REDUCED, HOLES_AGAIN = 0.45, 0.65, 1.4
# On a card, in segments that grow: moments of the optimizer lie where the first step's activations were, and
# what comes later finds no place of its size between them, but in a step of several micro-batches, whose
# gradients lie there first (this is a guess at the cause). Copies of all trained parameters in float32, of
# eight cases on an H200.
HOLES_CARD = 1.05


@dataclass(frozen=True, slots=True)
class LoraShape:
    """rank of the adapters, how many a block has, and the shapes of their parameters."""

    rank: int
    targets: int
    shapes: Shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerNumbers(MicrobatchRows):
    """Settings of a rank that trains.

    dp: ranks that what tp leaves of a block is split over; ranks: all, over which everything else is split;
    cp: of them, those that share sequences. item_bytes: of the dtype that is computed in; model_bytes: of
    what is published, and of the model itself under adapters. changes_fraction: the part of a published
    version that its changed elements may take beside it. accumulates: an optimizer step has several
    micro-batches. entropy: it has a gradient.
    """

    device: str
    dp: int
    ranks: int
    cp: int
    item_bytes: int
    model_bytes: int
    accumulates: bool
    checkpointed: bool
    entropy: bool
    lora: LoraShape | None = None
    changes_fraction: float = 0.0


def trainer_memory(model: ModelNumbers, how: TrainerNumbers) -> MemoryParts:
    """The moment of a step at which most is there."""
    step = _Step(model, how, _Parameters.of(model, how))
    return largest([*step.forward(), *step.backward()])


def saved_bytes(model: ModelNumbers, how: TrainerNumbers) -> int:
    """Bytes that one block keeps for the backward pass (module.py, fused.py, packing.py).

    Of a row: both norms' inputs and outputs; rotated queries, keys and values as attention reads them (see
    ModelNumbers.attended) and what it gives; gate, up and their product. In float32: scales of the norms and
    attention's normalisers.
    """
    wide = model.attended(how.device, how.item_bytes)
    linear = 4 * model.hidden + 3 * model.intermediate
    attention = 2 * model.query + 2 * wide
    small = WIDE_BYTES * (2 + model.heads)
    if model.qk_norm:
        linear += model.query + model.key
        small += WIDE_BYTES * (model.heads + model.kv_heads)
    if how.moved or how.cp > 1:
        linear += model.query
    if how.lora is not None:
        linear += how.lora.rank * how.lora.targets
    return how.item_bytes * (linear * how.rows + attention * how.padded) + small * how.padded


def block_backward_bytes(model: ModelNumbers, how: TrainerNumbers) -> int:
    """Bytes of one block's backward pass beyond those saved, less what it has freed by then."""
    item, hidden, inner, query = how.item_bytes, model.hidden, model.intermediate, model.query
    # _GatedSilu.backward: gradients of gate and up, one product more; those of the stream and of its norm.
    mlp = item * (2 * inner + 2 * hidden) * how.rows
    # The flash kernel's: gradients of its output, of queries, keys and values; for short sequences, which
    # there may be, in float32 too (packing._ShortFlash).
    attention = item * 4 * query * how.padded
    if how.device == "cpu" and item < WIDE_BYTES:
        attention += WIDE_BYTES * 8 * query * how.padded
    attention -= item * (3 * inner + hidden) * how.rows
    # _RMSNorm.backward, in float32: normed, gradient, inner and a product.
    norm = (WIDE_BYTES * 4 * hidden - item * 3 * inner) * how.rows
    return max(mlp, attention, norm)


@dataclass(frozen=True, slots=True)
class _Parameters:
    """Elements. whole: of this rank's slices, the shards of all dp ranks; root, block: of them what no layer
    has, and what one layer has.

    trained: this rank's shard of what has gradients, blocks: of those the layers'; trained_block and
    trained_root: unsharded. table: of the output matrix where it has a gradient. stored: bytes of this rank's
    shards, before anything is gathered.
    """

    whole: int
    root: int
    block: int
    trained: int
    blocks: int
    trained_block: int
    trained_root: int
    table: int
    stored: int

    @classmethod
    def of(cls, model: ModelNumbers, how: TrainerNumbers) -> _Parameters:
        layers, dp, local = model.layers, how.dp, model.elements(how.dp, how.ranks)
        root, full, lora = elements(model.root), how.lora is None, how.lora
        adapters = 0 if lora is None else elements(lora.shapes)
        blocks = layers * elements(model.block if lora is None else lora.shapes, dp)
        trained = local if full else blocks
        block = elements(model.block) + adapters
        return cls(
            whole=layers * block + root,
            root=root,
            block=block,
            trained=trained,
            blocks=blocks,
            trained_block=block if full else adapters,
            trained_root=root if full else 0,
            table=model.vocab * model.hidden if full else 0,
            stored=WIDE_BYTES * trained + (0 if full else how.model_bytes * local),
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """The moments of an optimizer step, of its last micro-batch."""

    model: ModelNumbers
    how: TrainerNumbers
    parameters: _Parameters

    def forward(self) -> Iterator[MemoryParts]:
        model, how, parameters = self.model, self.how, self.parameters
        item, before = how.item_bytes, self.accumulated
        # Alone, every block stays gathered until its backward pass; otherwise one is, the next is on its way,
        # and what the root owns to the end.
        gathered = item * (parameters.whole if how.dp == 1 else parameters.root + 2 * parameters.block)
        layers = model.layers * (self.kept if how.checkpointed else self.saved)
        wide_rows = item * 2 * model.intermediate * how.rows
        yield self.moment("forward", gathered, before, layers + self.again + wide_rows)
        # Into the last norm, out of it, the rows that are trained; then their gradient.
        trained = item * model.hidden * how.trained_rows
        final = layers + 2 * self.kept + trained
        yield self.moment("log-probs", gathered, before, final, _logits_forward(model, how))
        # The output matrix' gradient adds up in float32, then waits, narrowed, for that of the embedding.
        chunks = _logits_backward(model, how, parameters)
        wide = WIDE_BYTES * parameters.table
        yield self.moment("log-probs, backward", gathered, before + wide, final + trained, chunks)
        gradients = before + item * (parameters.table + parameters.trained_block)
        yield self.moment("backward, last block", gathered, gradients, layers + self.current)

    def backward(self) -> Iterator[MemoryParts]:
        """Yields the moments of the backward pass from the first block on, when all other layers are done."""
        how, parameters, item = self.how, self.parameters, self.how.item_bytes
        # A block's input to the reduction outlives it until the next one's.
        done = (self.accumulated or WIDE_BYTES * parameters.blocks) + WIDE_BYTES * parameters.trained_block
        head = item * parameters.table
        gathered = item * (parameters.root + (1 if how.dp == 1 else 2) * parameters.block)
        first = (self.kept if how.checkpointed else self.saved) + self.current
        gradients = done + head + item * parameters.trained_block
        yield self.moment("backward, first block", gathered, gradients, first)
        tied = head if self.model.tied else 0
        table = done + item * parameters.trained_root + tied
        yield self.moment("backward, embedding", item * parameters.root, table, self.kept)
        reduced = WIDE_BYTES * parameters.trained + (item + WIDE_BYTES) * parameters.trained_root
        yield self.moment("reduction of the embedding", 0, reduced, 0)

    @property
    def accumulated(self) -> int:
        """Gradients that are there when the micro-batch begins."""
        return WIDE_BYTES * self.parameters.trained if self.how.accumulates else 0

    @property
    def kept(self) -> int:
        """A block's input, as every other tensor of the stream's width."""
        return self.how.item_bytes * self.model.hidden * self.how.rows

    @property
    def saved(self) -> int:
        return saved_bytes(self.model, self.how)

    @property
    def again(self) -> int:
        """Bytes of the block that is computed again."""
        return self.saved if self.how.checkpointed else 0

    @property
    def current(self) -> int:
        """Bytes of the block whose backward pass is computed, beyond what the forward pass kept."""
        return self.again + block_backward_bytes(self.model, self.how)

    def moment(
        self, name: str, weights: int, gradients: int, activations: int, logits: int = 0
    ) -> MemoryParts:
        """Returns the parts at a moment. weights: bytes gathered, in addition to the shards."""
        model, how, parameters = self.model, self.how, self.parameters
        activations += (2 * how.item_bytes * model.head_dim + ROW_BYTES) * how.rows
        moving = weights + gradients + activations + logits
        slot = int(how.model_bytes * model.elements(how.dp, how.ranks) * (1 + how.changes_fraction))
        return MemoryParts(
            moment=name,
            weights=parameters.stored + weights,
            gradients=gradients,
            optimizer=MOMENTS * WIDE_BYTES * parameters.trained,
            activations=activations,
            logits=logits,
            # Slots are files: on a machine with GPUs its processor's memory has them.
            staging=SLOTS * slot if how.device == "cpu" else 0,
            margin=_margin(model, how, parameters, moving, activations),
        )


def _margin(
    model: ModelNumbers, how: TrainerNumbers, parameters: _Parameters, moving: int, activations: int
) -> int:
    if how.device != "cpu":
        alone = how.lora is None and not how.accumulates
        holes = HOLES_CARD * WIDE_BYTES * parameters.trained if alone else 0.0
        return int(max(MARGIN * moving, holes))
    exchanged = gathered = 0.0
    if how.cp > 1 or how.ranks > how.dp:
        exchanged = HOLES_EXCHANGED_AGAIN if how.cp > 1 and how.checkpointed else HOLES_EXCHANGED
    reduced, kept = HOLES_ALONE, HOLES_KEPT if how.ranks == 1 else HOLES_KEPT_REDUCED
    if how.dp > 1:
        reduced, gathered = HOLES_REDUCED, HOLES_GATHERED_AGAIN if how.checkpointed else HOLES_GATHERED
    of_parameters = ((reduced + exchanged) * WIDE_BYTES + gathered * how.item_bytes) * parameters.whole
    of_activations = kept * activations
    if how.checkpointed:
        block = how.item_bytes * (2 * model.intermediate + 2 * model.hidden) * how.rows
        of_activations = HOLES_AGAIN * model.layers * block
    return int(max(of_parameters, of_activations))


def _logits_forward(model: ModelNumbers, how: TrainerNumbers) -> int:
    """A chunk and its exponentials (before those, where it is narrower, the product in its own dtype)."""
    return 2 * WIDE_BYTES * chunk_elements(model.vocab, how.trained_rows, how.device)


def _logits_backward(model: ModelNumbers, how: TrainerNumbers, parameters: _Parameters) -> int:
    """A chunk, its probabilities where the entropy has a gradient; narrower, chunk and product once more."""
    chunk = chunk_elements(model.vocab, how.trained_rows, how.device)
    total = WIDE_BYTES * chunk * (2 if how.entropy else 1)
    return total + (how.item_bytes * (chunk + parameters.table) if how.item_bytes < WIDE_BYTES else 0)
