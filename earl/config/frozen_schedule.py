"""The earlier versions that a run still needs, as a function of versions alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrozenSchedule:
    """Freezes the version that training begins with, and then every `every`-th.

    first: the version that training begins with, after the warm-up. staleness: of the run, in versions.
    Example: with first = 3 and every = 4, versions 3 to 6 play against version 3, and 7 to 10 against 7.
    """

    first: int
    every: int
    staleness: int

    def version_at(self, version: int) -> int:
        """The version that is frozen while `version`, `first` or a later one, is the current one."""
        return version - (version - self.first) % self.every

    def needed(self, version: int) -> list[int]:
        """The frozen versions that tickets may name while `version` is trained, oldest first.

        A ticket that allows tokens of version m and newer ones names `version_at(m)`.
        """
        oldest = max(self.first, version - self.staleness)
        return sorted({self.version_at(each) for each in range(oldest, version + 1)})

    @property
    def most_needed(self) -> int:
        """The most versions that `needed` gives for any version."""
        return 1 + -(-self.staleness // self.every)


@dataclass(frozen=True, slots=True)
class PinnedSchedule:
    """The versions that tickets of a run with planned versions are pinned to.

    first: the version that training begins with, after the warm-up. staleness: of the run, in versions.
    """

    first: int
    staleness: int

    def needed(self, version: int) -> list[int]:
        """The versions that tickets may be pinned to while `version` is trained, oldest first.

        In the warm-up, whose tickets no version samples, it is the version itself: engines that have a newer
        one, which was given up, go back to it.
        """
        return list(range(min(version, max(self.first, version - self.staleness)), version + 1))

    @property
    def most_needed(self) -> int:
        """The most versions that `needed` gives for any version."""
        return 1 + self.staleness


@dataclass(frozen=True, slots=True)
class KeptVersions:
    """The versions that stay readable, beside the newest: those of every schedule of a run."""

    schedules: Sequence[FrozenSchedule | PinnedSchedule]

    def needed(self, version: int) -> list[int]:
        """The versions that tickets may name while `version` is trained, oldest first."""
        return sorted({each for schedule in self.schedules for each in schedule.needed(version)})

    @property
    def most_needed(self) -> int:
        """The most versions that `needed` gives for any version, or more."""
        return sum(schedule.most_needed for schedule in self.schedules)
