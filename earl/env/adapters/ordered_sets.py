"""Sets whose elements come in their order, for packages that make instances by going through sets.

Other sets of texts have an order of each process's own (its hash seed): by them one seed would be another
instance in another process, and an instance of evaluation one of training there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class OrderedSet(set[Any]):
    """A set, gone through from its least element on."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__()))


class OrderedFrozenSet(frozenset[Any]):
    """A frozenset, gone through from its least element on; so is what is left of it without others."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__()))

    def __sub__(self, other: Any) -> OrderedFrozenSet:
        return OrderedFrozenSet(super().__sub__(other))
