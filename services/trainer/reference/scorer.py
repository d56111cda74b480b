"""The reward model on one rank, and the scores that it gives to trajectories.

    sequences ─ pack ─► forward (tp ranks together) ─ hidden state of the last token ─ head ─► a number

Promise: a score is that of transformers' sequence classifiers with one label, of the sequence's last token;
it is finite. Each tp rank has all scores of its replica. deterministic: one sequence a forward pass, so that
a score's bits do not depend on what else is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from earl.errors import FragmentError
from earl.models.parallel import TensorParallel
from earl.models.scorer import load_head
from earl.parallelism import REWARD_MODEL
from services.trainer.reference.policy import MaskedTrajectory, ReferencePolicy
from services.trainer.step.prefix_packing import rows_of


class FrozenScorer(ReferencePolicy):
    """A decoder's slices with a head of one output, which every rank has whole; empty until filled."""

    _head: torch.Tensor | None = None

    def resharded(self, tensor: TensorParallel) -> FrozenScorer:
        """The same model at another place of a mesh, not allocated but for its head."""
        made = FrozenScorer(self.spec, tensor, self.device, self._config, self._role, allocated=False)
        made._head = self._head
        return made

    def fill(self, directory: Path) -> None:
        """Reads this rank's slices of a checkpoint, and its head. Raises ModelNotFound, UnsupportedModel."""
        super().fill(directory)
        self._head = load_head(directory, self.device)

    @torch.no_grad()
    def scores(self, sequences: Sequence[MaskedTrajectory]) -> np.ndarray:
        """float32[sequences]: the score of each. A collective of tp ranks.

        Raises FragmentError for one that is not finite, and OutOfMemory as `logprobs`.
        """
        made = np.zeros(len(sequences), np.float32)
        self._measured(sequences, lambda: self._fill_scores(sequences, made))
        if not np.isfinite(made).all():
            index = int(np.argmin(np.isfinite(made)))
            raise FragmentError(
                f"the role {REWARD_MODEL} gives {sequences[index].key} the score {made[index]}: the column "
                "score must have finite numbers",
                "its weights are damaged, or its dtype (trainer.dtype) is too narrow",
            )
        return made

    def _fill_scores(self, sequences: Sequence[MaskedTrajectory], into: np.ndarray) -> None:
        assert self._head is not None, "scores are asked once the weights are there"
        for packed in self._bins(sequences):
            chosen = [sequences[i] for i in packed.chosen]
            lengths = [len(sequence.tokens) for sequence in chosen]
            tokens = np.concatenate([sequence.tokens for sequence in chosen]).astype(np.int64)
            rows = rows_of(lengths, packed.shared)
            hidden = self.decoder.forward_packed(
                self._on_device(tokens[rows.places]), self._on_device(rows.positions), lengths, packed.shared
            )
            last = self._on_device(rows.first + np.asarray(lengths) - 1)
            into[packed.chosen] = (hidden[last].float() @ self._head).cpu().numpy()
