"""The frozen policy on one rank, and the log-probs that it gives to sampled tokens.

    sequences ─ pack ─► forward (tp ranks together) ─ rows of this rank's slice ─► lm_head, chunk by chunk

Promise: a trained token's log-prob is that of softmax(logits / temperature) at the position before it,
computed as the trainer computes its own. Each tp rank puts only its slice of the positions through the
lm_head. deterministic: one sequence a forward pass, all its trained positions through the lm_head at once,
so that a sequence's bits do not depend on what else is computed or where the slices end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import nn

from earl.config.run import RunConfig
from earl.dispatch.layout.box import Box, chunk_range
from earl.errors import TrainerError
from earl.models.module import decoder_on_meta
from earl.models.parallel import TensorParallel
from earl.models.slices import tp_box
from earl.models.spec import ModelSpec
from earl.models.weights import Checkpoint, load_decoder
from earl.parallelism import REFERENCE, Parallelism
from services.trainer.step.microbatch_bound import MicrobatchBound
from services.trainer.step.paced_pass import PacedPass
from services.trainer.step.prefix_packing import Bin, bins, rows_of


@dataclass(frozen=True, slots=True)
class MaskedTrajectory:
    """tokens int32[T], loss_mask uint8[T] of one sequence."""

    key: str
    tokens: np.ndarray
    loss_mask: np.ndarray


def slices(loss_mask: np.ndarray, count: int) -> list[Box]:
    """Positions [0, T) split among `count` ranks with equally many trained tokens each; some may be empty."""
    trained = np.flatnonzero(loss_mask)
    stops = [chunk_range(len(trained), index, count)[1] for index in range(count)]
    ends = [int(trained[stop]) if stop < len(trained) else len(loss_mask) for stop in stops]
    return [Box((start,), (stop,)) for start, stop in zip([0, *ends[:-1]], ends, strict=True)]


def trainable(trajectory: MaskedTrajectory, vocabulary: int) -> bool:
    """Returns whether the columns can be what a rollout worker wrote."""
    known = bool(((trajectory.tokens >= 0) & (trajectory.tokens < vocabulary)).all())
    return (
        known and int(trajectory.loss_mask.max(initial=0)) <= 1 and int(trajectory.loss_mask[:1].sum()) == 0
    )


class FrozenPolicy(Protocol):
    """A policy that never changes, on one rank of a stage. spec: of the model that its tokens are for."""

    @property
    def spec(self) -> ModelSpec: ...

    def fill(self, directory: Path) -> None:
        """Makes it ready to compute, from what the launch made. Raises ModelNotFound, UnsupportedModel."""
        ...

    def logprobs(self, sequences: Sequence[MaskedTrajectory], box: Box, into: np.ndarray) -> None:
        """Fills `into`, float32 of `box`: this rank's slice of the sequences laid end to end.

        0 where the mask is 0. Raises OutOfMemory, WorkAbandoned, and TrainerError or RpcError for log-probs
        that cannot be had.
        """
        ...


class WorkAbandoned(Exception):
    """The process is to end: its lease is left to whoever comes after it."""


class ReferencePolicy:
    """A decoder's slices on `device`, as a run's configuration asks for; empty until filled.

    role: whose frozen policy it is.
    allocated: False leaves every parameter on the meta device, for `allocate`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensor: TensorParallel,
        device: torch.device,
        config: RunConfig,
        role: str = REFERENCE,
        *,
        allocated: bool = True,
    ) -> None:
        self.decoder = decoder_on_meta(spec, tensor)
        self.decoder.requires_grad_(False)
        self.decoder.to(getattr(torch, config.trainer_dtype))
        if allocated:
            self.decoder.to_empty(device=device)
        self.spec, self.tensor, self.device, self._config = spec, tensor, device, config
        self._role = role
        # Greedy sampling records log-probs of the plain distribution.
        self._temperature = config.scheduler.temperature or 1.0
        self._deterministic = config.exact_kernels
        self._share = config.trainer.share_prefixes
        tokens = 0 if config.exact_kernels else config.frozen_stage(role).microbatch_tokens
        self._paced = PacedPass(config, role, Parallelism(1, tensor.size))
        self._bound = MicrobatchBound(f"{role}.microbatch_tokens", tokens, f"or raise {role}.tp")

    def resharded(self, tensor: TensorParallel) -> ReferencePolicy:
        """The same policy at another place of a mesh, not allocated."""
        return ReferencePolicy(self.spec, tensor, self.device, self._config, self._role, allocated=False)

    def allocate(self, name: str) -> None:
        """Memory, not filled, for a parameter that has none yet."""
        self.adopt(name, torch.empty_like(self.decoder.get_parameter(name), device=self.device))

    def adopt(self, name: str, memory: torch.Tensor) -> None:
        """Lets a parameter that has no memory yet have this, shaped as it is. Nothing is copied."""
        *path, last = name.split(".")
        setattr(self.decoder.get_submodule(".".join(path)), last, nn.Parameter(memory, requires_grad=False))

    def boxes(self) -> dict[str, tuple[torch.Tensor, Box]]:
        """Returns each parameter by name, and its box of the whole tensor."""
        shapes, tensor = self.spec.shapes(), self.tensor
        return {
            name: (parameter, tp_box(name, shapes[name], self.spec, tensor.rank, tensor.size))
            for name, parameter in self.decoder.named_parameters()
        }

    def fill(self, directory: Path) -> None:
        """Reads this rank's slices of a checkpoint. Raises ModelNotFound, UnsupportedModel."""
        Checkpoint(directory).check(self.spec)
        load_decoder(self.decoder, directory)

    @torch.no_grad()
    def logprobs(self, sequences: Sequence[MaskedTrajectory], box: Box, into: np.ndarray) -> None:
        """Fills `into`, float32 of `box`: this rank's slice of the sequences laid end to end.

        0 where the mask is 0. A collective of tp ranks. Raises TrainerError for what is not finite, and
        OutOfMemory if there is none for the smallest micro-batches, or on one of several ranks.
        """
        self._measured(sequences, lambda: self._fill(sequences, box, into))

    def _measured(self, sequences: Sequence[MaskedTrajectory], compute: Callable[[], None]) -> None:
        """Computes with these sequences, at their pace and within memory. Raises OutOfMemory."""
        self._paced.begin()
        total_tokens = sum(len(sequence.tokens) for sequence in sequences)
        self._paced.check(len(sequences), total_tokens)
        # With several ranks, the others wait for this one within the pass.
        self._bound.within_memory(
            compute,
            lambda: len(self._bins(sequences)),
            lambda: self.tensor.size == 1,
        )
        self._paced.wait(len(sequences), total_tokens)

    def _bins(self, sequences: Sequence[MaskedTrajectory]) -> list[Bin]:
        return bins(
            range(len(sequences)),
            lambda i: sequences[i].tokens,
            lambda i: int(np.argmax(sequences[i].loss_mask)),
            self._bound.tokens,
            share=self._share,
        )

    def _fill(self, sequences: Sequence[MaskedTrajectory], box: Box, into: np.ndarray) -> None:
        lengths = [len(sequence.tokens) for sequence in sequences]
        starts = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)
        into[:] = 0.0
        for packed_bin in self._bins(sequences):
            chosen = [sequences[i] for i in packed_bin.chosen]
            places, values = self._forward(chosen, packed_bin.shared, starts[packed_bin.chosen], box)
            into[places - box.start[0]] = values
        if not np.isfinite(into).all():
            raise TrainerError(
                f"the {self._role} gives {sequences[0].key} and others log-probs that are not finite",
                "its weights are damaged, or its dtype is too narrow",
            )

    def _forward(
        self, sequences: Sequence[MaskedTrajectory], shared: list[int], starts: np.ndarray, box: Box
    ) -> tuple[np.ndarray, np.ndarray]:
        """(where, log-probs float32) of the trained tokens within the box.

        shared: as in Bin; starts int64[B]: where each sequence lies among all.
        """
        lengths = [len(sequence.tokens) for sequence in sequences]
        tokens = np.concatenate([sequence.tokens for sequence in sequences]).astype(np.int64)
        mask = np.concatenate([sequence.loss_mask for sequence in sequences])
        laid = np.cumsum(lengths) - lengths
        where = np.arange(len(tokens)) + np.repeat(starts - laid, lengths)
        rows = rows_of(lengths, shared)
        inside = (where >= box.start[0]) & (where < box.stop[0])
        chosen = np.flatnonzero((mask == 1) & (inside | self._deterministic))
        hidden = self.decoder.forward_packed(
            self._on_device(tokens[rows.places]), self._on_device(rows.positions), lengths, shared
        )
        returned = inside[chosen]
        if not returned.any():
            return chosen[:0], np.zeros(0, np.float32)
        source = chosen - 1 - np.repeat(laid - rows.first, lengths)[chosen]
        targets = self._on_device(tokens[chosen])
        values = self.decoder.token_logprobs(hidden[self._on_device(source)], targets, self._temperature)[0]
        return where[chosen][returned], values.float().cpu().numpy()[returned]

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)
