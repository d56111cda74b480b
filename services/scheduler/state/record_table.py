"""Records by key, which know what was changed: nobody can change one and forget to have it stored."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RecordTable(dict[Key, Value]):
    """A dict of frozen records. Every way of setting or deleting a key notes that it has changed.

    Reading is a dict's own. `update` and its like are MutableMapping's: they set and delete key by key.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed: dict[Key, None] = {}

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self._changed[key] = None

    def __delitem__(self, key: Key) -> None:
        super().__delitem__(key)
        self._changed[key] = None

    def pop(self, key: Key, *default):  # type: ignore[override]
        if key not in self:
            return super().pop(key, *default)
        value = self[key]
        del self[key]
        return value

    popitem = MutableMapping.popitem  # type: ignore[assignment]
    clear = MutableMapping.clear  # type: ignore[assignment]
    update = MutableMapping.update  # type: ignore[assignment]
    setdefault = MutableMapping.setdefault  # type: ignore[assignment]

    def __ior__(self, other):  # type: ignore[override]
        self.update(other)
        return self

    def set_unstored(self, key: Key, value: Value) -> None:
        """Sets what a restart may forget: the stored record stays as it is until the next change."""
        super().__setitem__(key, value)

    def take_changed(self) -> Iterator[tuple[Key, Value | None]]:
        """Yields each key that changed since the last call, with its record now; None if it was removed."""
        changed, self._changed = self._changed, {}
        return ((key, self.get(key)) for key in changed)
