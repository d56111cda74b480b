"""A trained group that later batches may train on again."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from services.scheduler.state.tickets import Ticket


class Eviction(StrEnum):
    """The reason for which a group is not trained again any more."""

    # It was trained again as often as it may be.
    USED = "used"
    # It would be older than allowed at the next version.
    AGE = "age"
    # Newer groups took its place.
    CAPACITY = "capacity"
    # A file of its columns is missing or damaged.
    LOST = "lost"


class ReplayGroup(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False, frozen=True):
    """A group by the tickets that were played for it, each with its result.

    version: whose batch trained it first. uses: the versions whose batches trained it again. evicted: the
    version whose batch ended that, 0 while it may be trained again; reason: an Eviction. floor: no trained
    token of it is of an older version. A record outlives its eviction while a checkpoint from before may yet
    be restored.
    """

    group: int
    version: int
    floor: int
    place: int
    tickets: list[Ticket]
    uses: tuple[int, ...] = ()
    evicted: int = 0
    reason: str = ""

    @property
    def order(self) -> tuple[int, int, int]:
        """Its place among groups from the first that was trained to the last; the same in a resumed run."""
        return self.version, self.place, self.group
