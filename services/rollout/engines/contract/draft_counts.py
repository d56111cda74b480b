"""Counts of drafts: an engine counts, its worker adds up what its engines report and names the sums."""

from __future__ import annotations

import msgspec

from earl.draft_figures import ACCEPTED, DRAFTED, SOURCES, STEPS, TOKENS, of_source


class DraftCounts(msgspec.Struct):
    """Counts of an engine that drafts, or of several.

    steps: each step of an engine once for every sequence that it sampled for; tokens: what those gave, drafts
    included. drafted, accepted: tokens by source, a name of earl.draft_figures.
    """

    steps: int = 0
    tokens: int = 0
    drafted: dict[str, int] = {}
    accepted: dict[str, int] = {}

    def draft(self, source: str, drafted: int, accepted: int) -> None:
        """Counts drafted tokens, of which so many were accepted."""
        self.drafted[source] = self.drafted.get(source, 0) + drafted
        self.accepted[source] = self.accepted.get(source, 0) + accepted

    def include(self, other: DraftCounts) -> None:
        """Adds the counts of another."""
        self.steps += other.steps
        self.tokens += other.tokens
        for source, drafted in other.drafted.items():
            self.draft(source, drafted, other.accepted.get(source, 0))

    @property
    def drafted_tokens(self) -> int:
        """Drafted tokens of all sources."""
        return sum(self.drafted.values())

    @property
    def accepted_tokens(self) -> int:
        """Accepted tokens of all sources: sampling gave them, too."""
        return sum(self.accepted.values())

    def figures(self) -> dict[str, float]:
        """The counts by the names of earl.draft_figures; empty before the first step."""
        if not self.steps:
            return {}
        totals = {
            DRAFTED: self.drafted_tokens,
            ACCEPTED: self.accepted_tokens,
            STEPS: self.steps,
            TOKENS: self.tokens,
        }
        named = {name: float(count) for name, count in totals.items()}
        for source in SOURCES:
            named[of_source(source, DRAFTED)] = float(self.drafted.get(source, 0))
            named[of_source(source, ACCEPTED)] = float(self.accepted.get(source, 0))
        return named
