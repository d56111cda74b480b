"""Drafts for the sequences of a step: which tokens, and how many of them.

    sequences that sample ─► lookup of each ─► how many pay? ─► drafted tokens
    what sampling gave ─► acceptance, and counts by source

A draft changes no token: each of its tokens stands if and only if sampling gives it, from the logits of the
row before it and the uniform of (seed, position). So it is rejection sampling (RhymeRL, arXiv 2508.18588) in
which the draft is certain and the draw is fixed. Pure bookkeeping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from earl.draft_figures import DRAFTED_ROWS
from services.rollout.engines.contract.draft_counts import DraftCounts
from services.rollout.engines.drafts.lookup import DraftLookup
from services.rollout.engines.drafts.policy import MOST_DRAFTED, DraftPolicy


class SamplingSequence(NamedTuple):
    """A sequence that samples in a step. slot: its place in the engine; request_id: whose it is; references,
    of_task: as for DraftLookup; ids [N], integers: its tokens so far; most: tokens that it may draft."""

    slot: int
    request_id: str
    references: Sequence[bytes]
    of_task: int
    ids: np.ndarray
    most: int


class Drafting:
    """Drafts of an engine with so many slots. most: tokens that a sequence drafts in a step."""

    def __init__(self, slots: int, most: int = MOST_DRAFTED) -> None:
        self.policy = DraftPolicy(slots, most)
        # By slot: the request whose references it looks in.
        self._lookups: dict[int, tuple[str, DraftLookup]] = {}
        # By slot: where each token of its last draft stood.
        self._sources: dict[int, list[str]] = {}
        self.counts = DraftCounts()

    def draft(
        self, sequences: Sequence[SamplingSequence], rows: int, spare: int = DRAFTED_ROWS
    ) -> list[list[int]]:
        """Returns what is drafted for each sequence, DRAFTED_ROWS at most in all. rows: tokens that the step
        computes anyway; spare: how many more it may."""
        drafts: list[list[int]] = []
        spare = min(spare, DRAFTED_ROWS)
        for sequence in sequences:
            tokens = self._proposed(sequence, spare) if spare > 0 else []
            drafts.append(tokens)
            spare -= len(tokens)
        slots = [sequence.slot for sequence in sequences]
        numbers = self.policy.chosen(slots, list(map(len, drafts)), rows).tolist()
        return [tokens[:number] for tokens, number in zip(drafts, numbers, strict=True)]

    def note(self, slots: Sequence[int], drafted: Sequence[int], added: Sequence[int]) -> None:
        """A step has added so many tokens to each of its sequences, for which so many had been drafted."""
        self.counts.steps += len(slots)
        self.counts.tokens += sum(added)
        for slot, number, tokens in zip(slots, drafted, added, strict=True):
            if number:
                self.policy.note(slot, number, tokens - 1)
                # A draft that was shortened counts for the place of what was computed.
                self.counts.draft(self._sources[slot][number - 1], number, tokens - 1)

    def take(self) -> DraftCounts:
        """Returns the counts since the last call."""
        counts, self.counts = self.counts, DraftCounts()
        return counts

    def _proposed(self, sequence: SamplingSequence, spare: int) -> list[int]:
        slot = sequence.slot
        lookup = self._lookup(sequence)
        most = min(self.policy.most(slot), sequence.most, spare)
        if most < 1:
            return []
        tokens, self._sources[slot] = lookup.propose(sequence.ids, most)
        if not tokens:
            self.policy.missed(slot)
        return tokens

    def _lookup(self, sequence: SamplingSequence) -> DraftLookup:
        known = self._lookups.get(sequence.slot)
        if known is None or known[0] != sequence.request_id:
            lookup = DraftLookup(sequence.references, sequence.of_task)
            known = self._lookups[sequence.slot] = sequence.request_id, lookup
            self.policy.begin(sequence.slot)
        return known[1]
