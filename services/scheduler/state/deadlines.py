"""When what is held ends. Pure: time is an argument, in monotonic seconds."""

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
        """It ends then, whatever was said before."""
        self._until[key] = until
        if until < self._earliest:
            self._earliest = until

    def prolong(self, key: Key, until: float) -> None:
        """It ends then at the earliest."""
        if until > self._until.get(key, -math.inf):
            self.set(key, until)

    def drop(self, key: Key) -> None:
        """It never ends; nothing if it is not here."""
        self._until.pop(key, None)

    def take_due(self, now: float) -> list[Key]:
        """Those that have ended, which are dropped, in the order in which they were set first."""
        if now < self._earliest:
            return []
        due = [key for key, until in self._until.items() if until <= now]
        for key in due:
            del self._until[key]
        self._earliest = min(self._until.values(), default=math.inf)
        return due
