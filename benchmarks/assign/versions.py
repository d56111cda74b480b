"""Versions of a simulated run: which groups may be issued, and which are trained when. No clock.

The rule is the ledger's, for the same code decides: `services.scheduler.ledger.admission`. Training itself
takes no time here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from services.scheduler.ledger.admission import GroupCandidate, choose, target_version


class Versions:
    """Issues groups of one size, batch by batch, and trains them.

    A group may be trained up to `staleness` versions after its floor: the version that it was issued for less
    the staleness, or, as soon as all of its sequences have begun, the version at which the first began.
    """

    def __init__(self, batch_groups: int, group_size: int, staleness: int) -> None:
        self._batch_groups, self._group_size, self._staleness = batch_groups, group_size, staleness
        self.version = 1
        self._next = 0
        # By outstanding group: its deadline, sequences that have not begun, and those that have not ended.
        self._deadline: dict[int, int] = {}
        self._floor: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._complete = 0
        self._due: Counter[int] = Counter()

    @property
    def released(self) -> int:
        """Batches whose groups may be outstanding now, or have been."""
        return self.version + self._staleness

    @property
    def outstanding(self) -> Collection[int]:
        """Groups that were issued and not trained yet."""
        return self._deadline.keys()

    def issue(self) -> None:
        """Issues the groups of the next batch."""
        for group in range(self._next, self._next + self._batch_groups):
            target = target_version(self.version, len(self._deadline), self._batch_groups)
            self._deadline[group] = max(target, 1 + self._staleness)
            self._floor[group] = 1 << 30
            self._waiting[group] = self._left[group] = self._group_size
            self._due[self._deadline[group]] += 1
        self._next += self._batch_groups

    def begun(self, group: int) -> None:
        """A sequence of a group begins."""
        self._floor[group] = min(self._floor[group], self.version)
        self._waiting[group] -= 1
        if not self._waiting[group]:
            self._due[self._deadline[group]] -= 1
            self._deadline[group] = max(self._deadline[group], self._floor[group] + self._staleness)
            self._due[self._deadline[group]] += 1

    def ended(self, group: int) -> None:
        """A sequence of a group has ended."""
        self._left[group] -= 1
        if not self._left[group]:
            self._complete += 1
            self._due[self._deadline[group]] -= 1

    def train(self) -> bool:
        """Trains the next batch, if it may be; returns whether it was."""
        if self._complete < self._batch_groups or self._due[self.version]:
            return False
        candidates = [
            GroupCandidate(group, deadline, not self._left[group])
            for group, deadline in self._deadline.items()
        ]
        groups = choose(candidates, self.version, self._batch_groups, self._staleness)
        if groups is None:
            return False
        for group in groups:
            for table in (self._deadline, self._floor, self._waiting, self._left):
                del table[group]
        self._complete -= len(groups)
        self.version += 1
        return True
