"""Writes drafts into the slot table, for the sequences of a step that sample: behind each one's length."""

from __future__ import annotations

import numpy as np

from services.rollout.engines.contract.draft_counts import DraftCounts
from services.rollout.engines.drafts.drafting import Drafting, SamplingSequence
from services.rollout.engines.drafts.policy import MOST_DRAFTED
from services.rollout.engines.torch.slot_table import SlotTable


class Drafter:
    """Drafts for the table's sequences. most: tokens that one drafts in a step."""

    def __init__(self, table: SlotTable, most: int = MOST_DRAFTED) -> None:
        self._table = table
        self._drafting = Drafting(len(table.length), most)
        self.policy = self._drafting.policy

    def draft(self, slots: np.ndarray, complete: np.ndarray, taken: np.ndarray, spare: int) -> np.ndarray:
        """Drafts for the sequences of slots [N] that sample in this step (complete [N]) and writes the tokens
        behind their lengths. taken [N]: the tokens that the step computes of each anyway; spare: how many
        more it may. Returns how many were drafted for each, int64 [N]."""
        drafts = np.zeros(len(slots), dtype=np.int64)
        sampling = np.flatnonzero(complete).tolist()
        sequences = [self._sequence(int(slots[index])) for index in sampling]
        drafted = self._drafting.draft(sequences, int(taken.sum()), spare)
        for index, sequence, tokens in zip(sampling, sequences, drafted, strict=True):
            length = len(sequence.ids)
            self._table.tokens[sequence.slot, length : length + len(tokens)] = tokens
            drafts[index] = len(tokens)
        return drafts

    def note(self, slots: np.ndarray, drafts: np.ndarray, added: np.ndarray) -> None:
        """A step has added `added` [N] tokens to the sequences of slots [N], of which drafts [N] had been
        drafted."""
        self._drafting.note(slots.tolist(), drafts.tolist(), added.tolist())

    def take(self) -> DraftCounts:
        """Returns the counts since the last call."""
        return self._drafting.take()

    def _sequence(self, slot: int) -> SamplingSequence:
        table = self._table
        request, length = table.request[slot], int(table.length[slot])
        assert request is not None
        return SamplingSequence(
            slot,
            request.request_id,
            request.references,
            request.task_references,
            table.tokens[slot, :length],
            int(table.limit[slot]) - length - 1,
        )
