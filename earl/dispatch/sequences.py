"""The owner's side of ragged sequences: columns of many rows, one record each in one hash of Redis.

```
reserve(name, rows) ─ caller writes the columns in place ─► publish(names) ─► readers … ─► remove(names)
```
A sequence costs a region and a record of a few words; lease and head (arena, columns) are the owner's,
so that renewing costs the same however many sequences wait. Readers know one as "<key>#<name>".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import numpy as np

from earl.dispatch import codec
from earl.dispatch.arena import Arena, Region
from earl.dispatch.descriptor import numpy_dtype, packed
from earl.dispatch.registry import Registry
from earl.errors import LayoutError


class SequenceStore:
    """One owner's sequences. key: of no other owner and no other life of it. columns: (name, dtype's name).

    Use from one loop; arrays from `reserve` may be filled anywhere.
    """

    def __init__(
        self,
        arena: Arena,
        registry: Registry,
        key: str,
        columns: Sequence[tuple[str, str]],
        *,
        checksum: bool,
    ) -> None:
        self.key = key
        self.arena = arena
        self._registry = registry
        self._columns = tuple(columns)
        self._items = [numpy_dtype(dtype).itemsize for _, dtype in columns]
        self._checksum = checksum
        # Name -> rows and region; and what was published of it.
        self._held: dict[str, tuple[int, Region]] = {}
        self._records: dict[str, bytes] = {}
        self._publishing = asyncio.Lock()

    def key_of(self, name: str) -> str:
        """By which readers know a sequence."""
        return f"{self.key}#{name}"

    def name_of(self, key: str) -> str | None:
        """The sequence that readers know by this key; None if it is not one of this owner's."""
        owner, _, name = key.partition("#")
        return name if owner == self.key and name else None

    @property
    def names(self) -> list[str]:
        """What is held: reserved or published."""
        return list(self._held)

    def rows(self, name: str) -> int:
        """Of a sequence that is held. Raises KeyError."""
        return self._held[name][0]

    def reserve(self, name: str, rows: int) -> dict[str, np.ndarray]:
        """Writable columns, each [rows], in the arena; then `publish([name])`.

        Raises ArenaFull, and LayoutError when the name is taken.
        """
        if not name or name in self._held:
            raise LayoutError(f"{self.key_of(name)} is held already, or has no name", "remove it first")
        offsets, sizes = packed(np.array([rows], np.int64), self._items)
        region = self.arena.allocate(int(sizes[0]))
        self._held[name] = rows, region
        return {
            column: region.array(numpy_dtype(dtype), (rows,), int(offset))
            for (column, dtype), offset in zip(self._columns, offsets[0], strict=True)
        }

    async def publish(self, names: Iterable[str]) -> None:
        """Seal these and make them known, in one round trip; from here on they must not be written.

        Raises LayoutError for a name that is not held, BusUnavailable.
        """
        names = list(names)
        unknown = [name for name in names if name not in self._held]
        if unknown:
            raise LayoutError(f"{self.key_of(unknown[0])} was never reserved, or was removed", "reserve it")
        if self._checksum:
            await asyncio.to_thread(self._seal, names)
        else:
            self._seal(names)
        # Removed meanwhile: not to be known any more.
        new = {name: self._records[name] for name in names if name in self._records}
        if new:
            await self._put(new)

    async def remove(self, names: Iterable[str]) -> None:
        """Free their regions and forget their records; names not held are ignored."""
        held = [name for name in names if name in self._held]
        for name in held:
            self._records.pop(name, None)
            self._held.pop(name)[1].free()
        await self._registry.remove_records(self.key, held)

    async def renew(self) -> bool:
        """Extend the lease; False if the records were lost and had to be published again."""
        if not self._records or not await self._registry.renew([self.key]):
            return True
        await self._put(dict(self._records))
        return False

    def free(self) -> None:
        """Free every region: the owner is leaving."""
        for _, region in self._held.values():
            region.free()
        self._held.clear()
        self._records.clear()

    def _seal(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._held:
                rows, region = self._held[name]
                self._records[name] = codec.encode_record(rows, region.seal(self._checksum))

    async def _put(self, records: dict[str, bytes]) -> None:
        # One at a time, so that the count of what is known says whether any was lost.
        async with self._publishing:
            head = codec.encode_head(self.arena.ref, self._columns)
            known = await self._registry.publish_records(self.key, head, records)
            if known < len(self._records):
                await self._registry.publish_records(self.key, head, dict(self._records))
        await self._registry.remove_records(self.key, records.keys() - self._records.keys())
