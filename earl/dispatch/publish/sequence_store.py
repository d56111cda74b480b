"""The owner's side of ragged sequences: columns of many rows, one record each in one hash of Redis.

```
reserve(name, rows) ─ caller writes the columns in place ─► publish(names) ─► readers … ─► remove(names)
```
A sequence costs a region and a record of a few words; lease and head (arena, columns) are the owner's,
so that renewing costs the same however many sequences wait. Readers know one as "<key>#<name>".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

import numpy as np

from earl.dispatch.describe.descriptor import packed
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.memory.arena import Arena, Region
from earl.dispatch.registry import codec
from earl.dispatch.registry.registry import Registry, holder_mark
from earl.errors import LayoutError, RegionGone

# Below this, digests take less time than handing them to a thread.
_INLINE_BYTES = 1 << 20


class SequenceStore:
    """One owner's sequences. key: used by no other owner and no other life of this one. columns: (name,
    dtype's name).

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
        self._mark = holder_mark(arena.ref)
        # Name -> rows and region; and what was published of it.
        self._held: dict[str, tuple[int, Region]] = {}
        self._records: dict[str, bytes] = {}
        self._publishing = asyncio.Lock()

    def key_of(self, name: str) -> str:
        """The key by which readers know this owner's sequence of that name."""
        return f"{self.key}#{name}"

    def name_of(self, key: str) -> str | None:
        """The sequence that readers know by this key; None if it is not one of this owner's."""
        owner, _, name = key.partition("#")
        return name if owner == self.key and name else None

    @property
    def names(self) -> list[str]:
        """Names of the sequences that are reserved or published."""
        return list(self._held)

    def rows(self, name: str) -> int:
        """The number of rows of a sequence that is reserved or published. Raises KeyError."""
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

    def cancel(self, names: Iterable[str]) -> None:
        """Frees what is reserved under these names and was not published."""
        for name in names:
            self._held.pop(name)[1].free()

    async def publish(self, names: Iterable[str]) -> None:
        """Seals these and makes them known, in one round trip; from here on they must not be written.

        Raises LayoutError for a name that is not held, KeyTaken, BusUnavailable.
        """
        names = list(names)
        unknown = [name for name in names if name not in self._held]
        if unknown:
            raise LayoutError(f"{self.key_of(unknown[0])} was never reserved, or was removed", "reserve it")
        work = [(name, *self._held[name]) for name in names]
        hashed_bytes = sum(region.size_bytes for _, _, region in work) if self._checksum else 0
        inline = hashed_bytes <= _INLINE_BYTES
        sealed = self._seal(work) if inline else await asyncio.to_thread(self._seal, work)
        # What was removed meanwhile is not to be known any more.
        for name, region, record in sealed:
            if name in self._held and self._held[name][1] is region:
                self._records[name] = record
        await self._put([name for name in names if name in self._records])

    async def remove(self, names: Iterable[str]) -> None:
        """Frees their regions and forgets their records; names not held are ignored."""
        held = [name for name in names if name in self._held]
        for name in held:
            self._records.pop(name, None)
            self._held.pop(name)[1].free()
        # What is being published may be one of these.
        async with self._publishing:
            await self._registry.remove_records(
                self.key, self._mark, [name for name in held if name not in self._records]
            )

    async def renew(self) -> bool:
        """Extends the lease; False if records were lost and had to be published again."""
        expected = len(self._records)
        if not expected or await self._registry.renew_records(self.key, self._mark) >= expected:
            return True
        await self._put(list(self._records))
        return False

    async def release(self) -> None:
        """Forgets the key: the owner is leaving. Raises BusUnavailable."""
        await self._registry.release_records(self.key, self._mark)

    def free(self) -> None:
        """Frees every region: the owner is leaving."""
        for _, region in self._held.values():
            region.free()
        self._held.clear()
        self._records.clear()

    def _seal(self, work: Sequence[tuple[str, int, Region]]) -> list[tuple[str, Region, bytes]]:
        """The records of what is not freed meanwhile."""
        sealed: list[tuple[str, Region, bytes]] = []
        for name, rows, region in work:
            with contextlib.suppress(RegionGone):
                ref = region.seal(self._checksum)
                sealed.append((name, region, codec.encode_record(self.key_of(name), rows, ref)))
        return sealed

    async def _put(self, names: Sequence[str]) -> None:
        async with self._publishing:
            records = {name: self._records[name] for name in names if name in self._records}
            if not records:
                return
            head = codec.encode_head(self.key, self.arena.ref, self._columns)
            # Fewer than these: the hash was lost, and what was in it.
            expected = len(self._records)
            put = self._registry.publish_records
            if await put(self.key, self._mark, head, records) < expected:
                await put(self.key, self._mark, head, dict(self._records))
