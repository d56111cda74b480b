"""Writes drafts into the slot table, for the sequences of a step that sample.

    slots that sample ─► lookup of each ─► how many pay? ─► tokens behind each sequence's length

A draft changes no token: each of its tokens stands if and only if sampling gives it, from the logits of the
row before it and the uniform of (seed, position). So it is rejection sampling (RhymeRL, arXiv 2508.18588) in
which the draft is certain and the draw is fixed. Pure bookkeeping.
"""

from __future__ import annotations

import numpy as np

from services.rollout.engines.contract.draft_counts import DraftCounts
from services.rollout.engines.torch.drafts.lookup import DraftLookup
from services.rollout.engines.torch.drafts.policy import MOST_DRAFTED, DraftPolicy
from services.rollout.engines.torch.slot_table import SlotTable


class Drafter:
    """Drafts for the table's sequences. rows: that a step samples from, drafts included, at most; what is
    predicted of an engine's memory holds so many."""

    def __init__(self, table: SlotTable, rows: int, most: int = MOST_DRAFTED) -> None:
        self._table, self._rows = table, rows
        self.policy = DraftPolicy(len(table.length), most)
        # By slot: the request whose references it looks in.
        self._lookups: dict[int, tuple[str, DraftLookup]] = {}
        # By slot: where each token of its last draft stood.
        self._sources: dict[int, list[str]] = {}
        self.counts = DraftCounts()

    def draft(self, slots: np.ndarray, complete: np.ndarray, taken: np.ndarray, spare: int) -> np.ndarray:
        """Drafts for the sequences of slots [N] that sample in this step (complete [N]) and writes the tokens
        behind their lengths. taken [N]: the tokens that the step computes of each anyway; spare: how many
        more it may. Returns how many were drafted for each, int64 [N]."""
        drafts = np.zeros(len(slots), dtype=np.int64)
        sampling = np.flatnonzero(complete).tolist()
        spare = min(spare, self._rows - len(slots))
        table = self._table
        for index in sampling:
            if spare < 1:
                break
            slot = int(slots[index])
            lookup, length = self._lookup(slot), int(table.length[slot])
            most = min(self.policy.most(slot), int(table.limit[slot]) - length - 1, spare)
            if most < 1:
                continue
            tokens, self._sources[slot] = lookup.propose(table.tokens[slot, :length], most)
            if not tokens:
                self.policy.missed(slot)
            table.tokens[slot, length : length + len(tokens)] = tokens
            drafts[index] = len(tokens)
            spare -= len(tokens)
        drafts[sampling] = self.policy.chosen(
            slots[sampling].tolist(), drafts[sampling].tolist(), int(taken.sum())
        )
        return drafts

    def note(self, slots: np.ndarray, drafts: np.ndarray, added: np.ndarray) -> None:
        """A step has added `added` [N] tokens to the sequences of slots [N], of which drafts [N] had been
        drafted."""
        self.counts.steps += len(slots)
        self.counts.tokens += int(added.sum())
        for slot, drafted, tokens in zip(slots.tolist(), drafts.tolist(), added.tolist(), strict=True):
            if drafted:
                self.policy.note(slot, drafted, tokens - 1)
                # A draft that was shortened counts for the place of what was computed.
                self.counts.draft(self._sources[slot][drafted - 1], drafted, tokens - 1)

    def take(self) -> DraftCounts:
        """Returns the counts since the last call."""
        counts, self.counts = self.counts, DraftCounts()
        return counts

    def _lookup(self, slot: int) -> DraftLookup:
        request = self._table.request[slot]
        assert request is not None
        known = self._lookups.get(slot)
        if known is None or known[0] != request.request_id:
            lookup = DraftLookup(request.references, request.task_references)
            known = self._lookups[slot] = request.request_id, lookup
            self.policy.begin(slot)
        return known[1]
