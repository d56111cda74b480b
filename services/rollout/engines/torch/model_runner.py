"""One rank's forward pass over a KV cache with a fixed number of slots.

    batch: slot, start, count of each sequence ─► linear layers on packed tokens [T, H]
                                               ─► attention by parts against the slots' KV
                                               ─► logits [R, V] of each sequence's last token, and of
                                                  those before it if it has drafts

Weights are fused for speed: `parameters` says of which slices of published tensors each of `weights` is made
(earl.models.slices), and `use_weights` puts to use what was written there.

deterministic: a token's row is computed bit for bit the same whatever it is batched with. Everything
but attention then runs on tiles of TILE rows, so that each kernel sees one shape only; that its rows
do not depend on their place or their neighbours is checked whenever weights are put to use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from earl.dispatch.layout.box import Box
from earl.errors import EngineError
from earl.models.module import rope_frequencies, rope_table, rotate
from earl.models.parallel import TensorParallel
from earl.models.return_pages import return_pages
from earl.models.slices import rank_parameters
from earl.models.spec import ModelSpec
from earl.models.tp import rank_heads
from earl.models.weights import Checkpoint
from services.rollout.engines.torch.attention import AttentionPart, AttentionShape, aligned_parts, parts_of
from services.rollout.engines.torch.batch import GIVE_BACK, StepBatch
from services.rollout.engines.torch.kv_cache import KvCache
from services.rollout.engines.torch.linear import Linear

# Makes a tensor the sum of all ranks', in place.
AddUp = Callable[[torch.Tensor], object]

# Rows that a deterministic forward computes at once.
TILE = 32
# The tables of positions begin with so many.
FIRST_POSITIONS = 1024


@dataclass
class _Layer:
    """Fused weights of one block, and its part of the cache: keys and values [S, kv, C, D]."""

    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Linear
    out_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    keys: torch.Tensor
    values: torch.Tensor


def alone(x: torch.Tensor) -> None:
    """Stands for the sum over ranks where there is one rank. Raises EngineError if it is called."""
    raise EngineError(
        f"a tensor {list(x.shape)} is to be summed over tp, and no function for it was given", "give add_up"
    )


class ModelRunner:
    """Holds this rank's weights and KV cache. slots S and context C (tokens) size the cache.

    add_up: makes a tensor [T, H] its sum over the ranks of tp, in place; called only where these are several.
    asleep: it has no memory for weights and KV before `take_memory`.
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
        deterministic: bool = False,
        add_up: AddUp = alone,
        asleep: bool = False,
    ) -> None:
        self.spec, self.tp, self._add_up = spec, tp, add_up
        self.slots, self.context = slots, context
        self.dtype, self.device = dtype, torch.device(device)
        self.deterministic = deterministic
        self.heads, self.kv_heads = rank_heads(spec, tp.size)
        self.shape = AttentionShape(self.heads, self.kv_heads, spec.head_dim, self.device)
        self.parameters = rank_parameters(spec, tp.rank, tp.size, fused=True)
        self.weights: dict[str, torch.Tensor] = {}
        for name, sliced in self.parameters.items():
            shared = self.weights.get(sliced.same_as)
            zeros = torch.zeros(sliced.shape, dtype=dtype, device=device) if shared is None else shared
            self.weights[name] = zeros
            if asleep and shared is None:
                zeros.untyped_storage().resize_(0)
        self._embedding = self.weights["model.embed_tokens.weight"]
        self.cache = KvCache(
            spec.layers, slots, context, self.kv_heads, spec.head_dim, dtype=dtype, device=self.device
        )
        if asleep:
            self.cache.release()
        self._layers = [self._layer(number) for number in range(spec.layers)]
        self._norm = self.weights["model.norm.weight"]
        self._head = Linear(self.weights["lm_head.weight"])
        self._cosine, self._sine = self._rotations(min(context, FIRST_POSITIONS))

    def _rotations(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of the first `count` positions, each [count, 1, D]."""
        positions = torch.arange(count, device=self.device)
        return rope_table(rope_frequencies(self.spec.rope, self.spec.head_dim), positions, self.dtype)

    def _reach(self, count: int) -> None:
        """Makes the tables of positions at least so long: they grow with what is reached, not with what may
        be."""
        if count > len(self._cosine):
            count = min(self.context, max(count, 2 * len(self._cosine)))
            self._cosine, self._sine = self._rotations(count)

    # --- weights ------------------------------------------------------------------------------

    def _layer(self, number: int) -> _Layer:
        weights, block = self.weights, f"model.layers.{number}."
        attention, mlp = block + "self_attn.", block + "mlp."
        return _Layer(
            input_norm=weights[block + "input_layernorm.weight"],
            qkv=Linear(weights[attention + "qkv_proj.weight"], weights.get(attention + "qkv_proj.bias")),
            q_norm=weights.get(attention + "q_norm.weight"),
            k_norm=weights.get(attention + "k_norm.weight"),
            out=Linear(weights[attention + "o_proj.weight"]),
            out_bias=weights.get(attention + "o_proj.bias"),
            post_norm=weights[block + "post_attention_layernorm.weight"],
            gate_up=Linear(weights[mlp + "gate_up_proj.weight"]),
            down=Linear(weights[mlp + "down_proj.weight"]),
            keys=self.cache.keys[number],
            values=self.cache.values[number],
        )

    def load(self, directory: str) -> None:
        """Fills the weights from a checkpoint directory. Raises ModelNotFound, UnsupportedModel."""
        checkpoint = Checkpoint(directory)
        checkpoint.check(self.spec)
        self.fill(checkpoint.read)

    @torch.inference_mode()
    def fill(self, read: Callable[[str, Box], torch.Tensor]) -> None:
        """Writes all weights from boxes of the published tensors, `read(name, box)`, and puts them to use."""
        for name, sliced in self.parameters.items():
            for part in sliced.parts if not sliced.same_as else ():
                self.weights[name][part.target.slices()].copy_(read(part.source, part.box))
        self.use_weights()

    @torch.inference_mode()
    def use_weights(self) -> None:
        """Puts the weights that were written to use; on every rank, since deterministic ranks check
        together. Raises EngineError if this machine's kernels do not allow deterministic = true."""
        for linear in self._linears():
            linear.pack()
        if self.deterministic:
            self._check_rows()

    def _check_rows(self) -> None:
        """Checks that a row of a tile depends neither on its place nor on its neighbours. Raises
        EngineError."""
        generator = torch.Generator().manual_seed(0)
        width = self.heads * self.spec.head_dim
        x = torch.randn((TILE, self.spec.hidden), generator=generator).to(self.device, self.dtype)
        attended = torch.randn((TILE, width), generator=generator).to(self.device, self.dtype)
        cosine, sine = (table[:1].expand(TILE, -1, -1) for table in (self._cosine, self._sine))
        layer = self._layers[0]

        def outputs(shift: int) -> list[torch.Tensor]:
            rolled, other = x.roll(shift, 0), attended.roll(shift, 0)
            results = [
                self._project(layer, rolled, cosine, sine),
                self._finish(layer, rolled, other),
                self._logits(rolled),
            ]
            # As bits, in which NaN equals NaN: broken weights are reported elsewhere.
            bits = torch.int32 if self.dtype == torch.float32 else torch.int16
            return [result.roll(-shift, 0).view(bits) for result in results]

        reference, *others = [outputs(shift) for shift in (0, 1, 7, TILE // 2)]
        if not all(torch.equal(a, b) for other in others for a, b in zip(reference, other, strict=True)):
            raise EngineError(
                f"deterministic = true: a row's result depends on its place in a batch on {self.device} "
                f"with {torch.get_num_threads()} threads",
                "try rollout.threads = 1, or the other rollout.dtype",
            )

    # --- sleep --------------------------------------------------------------------------------

    def release_memory(self) -> None:
        """Returns the memory of weights and KV to the system. The tensors stay, without memory."""
        for linear in self._linears():
            linear.unpack()
        for weight in self.weights.values():
            weight.untyped_storage().resize_(0)
        self.cache.release()
        return_pages()

    def take_memory(self) -> None:
        """Takes memory for weights, which are then to be written, and for KV."""
        for weight in self.weights.values():
            storage = weight.untyped_storage()
            if storage.nbytes() == 0:
                storage.resize_(weight.numel() * weight.element_size())
        self.cache.take_memory()

    def _linears(self) -> Iterator[Linear]:
        for layer in self._layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)
        yield self._head

    # --- forward ------------------------------------------------------------------------------

    @torch.inference_mode()
    def move(self, moves: np.ndarray) -> None:
        """Copies rows of KV and gives rows back, by StepBatch.moves."""
        for source, target, count, stop in moves.tolist():
            if source == GIVE_BACK:
                self.cache.give_back(target, count, stop)
            else:
                self.cache.copy(source, target, count)

    @torch.inference_mode()
    def forward(self, batch: StepBatch) -> torch.Tensor | None:
        """Does the batch's moves, then adds its tokens to the cache. Logits [sum of 1 + drafts, V] of each
        sequence's last token before its draft and of the draft's tokens, in the batch's order, on rank 0;
        None on the others. Sequences are in any order."""
        self.move(batch.moves)
        order = np.lexsort((batch.slots, -batch.counts))
        slots, starts, counts = batch.slots[order], batch.starts[order], batch.counts[order]
        ends = np.cumsum(counts)
        offsets = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        positions = np.repeat(starts, counts) + offsets
        source = np.repeat((np.cumsum(batch.counts) - batch.counts)[order], counts) + offsets
        # Rows of the cache, as [S * kv * C, D]: of each token, one for each head.
        heads = np.repeat(slots, counts)[:, None] * self.kv_heads + np.arange(self.kv_heads)
        flat = self.shape.on_device((heads * self.cache.rows + positions[:, None]).reshape(-1))
        split = aligned_parts if self.deterministic else parts_of
        parts = split(self.shape, slots, starts, counts)
        tokens = batch.tokens[source]
        if self.deterministic:
            # Whole tiles; nobody reads what is computed for the padding.
            padding = -len(tokens) % TILE
            tokens, positions = np.pad(tokens, (0, padding)), np.pad(positions, (0, padding))
        self._reach(int(positions.max()) + 1)
        positions = self.shape.on_device(positions)
        cosine, sine = self._cosine.index_select(0, positions), self._sine.index_select(0, positions)
        x = self._embedding.index_select(0, self.shape.on_device(tokens))
        for layer in self._layers:
            x = self._block(layer, x, cosine, sine, flat, parts)
        if self.tp.rank != 0:
            return None
        sampling = np.empty_like(order)
        sampling[order] = ends - 1
        if batch.drafts.any():
            of, behind = batch.sampled_rows()
            sampling = (sampling - batch.drafts)[of] + behind
        sampled = len(sampling)
        if self.deterministic:
            sampling = np.pad(sampling, (0, -sampled % TILE))
        x = x.index_select(0, self.shape.on_device(sampling))
        return self._by_tiles(self._logits, x)[:sampled]

    def _by_tiles(self, function: Callable[..., torch.Tensor], *rows: torch.Tensor) -> torch.Tensor:
        """function(*rows), which works row by row; tile by tile if deterministic."""
        if not self.deterministic or len(rows[0]) == TILE:
            return function(*rows)
        return torch.cat([function(*tiles) for tiles in zip(*(x.split(TILE) for x in rows), strict=True)])

    def _block(
        self,
        layer: _Layer,
        x: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        flat: torch.Tensor,
        parts: list[AttentionPart],
    ) -> torch.Tensor:
        heads, kv_heads, head_dim = self.heads, self.kv_heads, self.spec.head_dim
        projected = self._by_tiles(lambda *rows: self._project(layer, *rows), x, cosine, sine)
        real = len(flat) // kv_heads
        keys, values = projected[:real, heads:-kv_heads], projected[:real, -kv_heads:]
        layer.keys.view(-1, head_dim).index_copy_(0, flat, keys.reshape(-1, head_dim))
        layer.values.view(-1, head_dim).index_copy_(0, flat, values.reshape(-1, head_dim))
        outputs = [part.attend(layer.keys, layer.values, projected[part.rows, :heads]) for part in parts]
        if len(x) > real:
            outputs.append(x.new_zeros((len(x) - real, heads * head_dim)))
        attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return self._by_tiles(lambda *rows: self._finish(layer, *rows), x, attended)

    def _project(
        self, layer: _Layer, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
    ) -> torch.Tensor:
        """x [T, H] → queries, keys and values [T, heads + 2 * kv_heads, D], the former two rotated."""
        heads, kv_heads = self.heads, self.kv_heads
        projected = layer.qkv(self._normed(x, layer.input_norm))
        projected = projected.unflatten(-1, (heads + 2 * kv_heads, self.spec.head_dim))
        rotated = projected[:, :-kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            query = self._normed(projected[:, :heads], layer.q_norm)
            rotated = torch.cat((query, self._normed(projected[:, heads:-kv_heads], layer.k_norm)), 1)
        projected[:, :-kv_heads] = rotate(rotated, cosine, sine)
        return projected

    def _finish(self, layer: _Layer, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest of a block: x [T, H] and what its heads attended to [T, heads * D] → [T, H]."""
        out = self._summed(layer.out(attended))
        x = x + out if layer.out_bias is None else x + out + layer.out_bias
        gate, up = layer.gate_up(self._normed(x, layer.post_norm)).chunk(2, -1)
        return x + self._summed(layer.down(F.silu(gate).mul_(up)))

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return self._head(self._normed(x, self._norm))

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.spec.eps)

    def _summed(self, x: torch.Tensor) -> torch.Tensor:
        if self.tp.size > 1:
            self._add_up(x)
        return x
