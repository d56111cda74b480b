"""Deadlines of leases and other things held for a time. Pure: time is an argument, in monotonic seconds."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

Key = TypeVar("Key")


class DeadlineQueue(Generic[Key]):
    """Keys, each with the time at which it ends.

    Asking costs nothing before the earliest of them, however many there are and however often they are
    prolonged: they are looked through only once that time has come.
    """

    def __init__(self) -> None:
        self._until: dict[Key, float] = {}
        # None of them ends before this.
        self._earliest = math.inf

    def set(self, key: Key, until: float) -> None:
        """Sets the key's deadline, whatever it was before."""
        self._until[key] = until
        if until < self._earliest:
            self._earliest = until

    def prolong(self, key: Key, until: float) -> None:
        """Moves the key's deadline to this time unless it is later already."""
        if until > self._until.get(key, -math.inf):
            self.set(key, until)

    def drop(self, key: Key) -> None:
        """Removes the key, if it is there."""
        self._until.pop(key, None)

    def take_due(self, now: float) -> list[Key]:
        """Removes and returns the keys whose deadlines have passed, in the order of their first `set`."""
        if now < self._earliest:
            return []
        due = [key for key, until in self._until.items() if until <= now]
        for key in due:
            del self._until[key]
        self._earliest = min(self._until.values(), default=math.inf)
        return due
