"""Reads over the wire: UCX on TCP, two-sided, answered by the owner's serving process.

```
read ─ pieces ─ chunks ─► window of 3 a connection ─► request ─► payload straight into the target, run by
       run; short runs into a pooled buffer and scattered ─► status ─► verify
```
Verification: the server digests the payload it sent and the region blocks it came from; the reader
compares the first with what arrived and the second with what was published, so that a slice is
checked end to end without reading more than the slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.pieces import Pieces, Repeat, most_blocks
from earl.dispatch.describe.regions import ArenaRef, Regions
from earl.dispatch.transport import wire
from earl.dispatch.transport.base import Transport, failure_of, refuse_mismatch, run_all, settle
from earl.dispatch.transport.connections import Connections
from earl.dispatch.transport.copying import scatter
from earl.dispatch.transport.ucx.buffers import Buffers
from earl.dispatch.transport.ucx.connection import UcxConnection
from earl.dispatch.transport.ucx.node import UcxNode
from earl.dispatch.transport.ucx.runs import Runs, address_of, digest, runs_of
from earl.dispatch.transport.ucx.ucp import through_buffer
from earl.errors import ChecksumMismatch, PeerLost, PeerUnreachable

# Below this, what goes to one place in one buffer travels with others in one request.
_DIRECT_BYTES = 64 << 10
# How long a cancelled request may take to arrive before its connection is given up.
_GRACE_S = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """The pieces of one request, which may be sent for any version's regions.

    short: bool[P], which pieces arrive through a pooled buffer. payload: where the answer goes; None if some
    pieces are short. regions: int64[N], the read's regions that the request names; table: its encoded
    pieces. blocks: int64[B, 2], (region, block) that its answer digests.
    """

    pieces: Pieces
    block_bytes: int
    short: np.ndarray
    payload: np.ndarray | Runs | None
    regions: np.ndarray
    table: bytes
    blocks: np.ndarray

    @classmethod
    def of(cls, pieces: Pieces, direct: bool, block_bytes: int) -> _Chunk:
        """direct: the pieces fill one buffer from target_offset[0] on, without a gap."""
        short, payload = np.zeros(len(pieces), bool), None
        if direct:
            first = int(pieces.target_offset[0])
            payload = pieces.buffers[pieces.buffer[0]][first : first + pieces.size_bytes]
        elif not (short := through_buffer(pieces.rows, pieces.run)).any():
            payload = _runs(pieces, short, None)
        regions, local = np.unique(pieces.region, return_inverse=True)
        columns = [local.ravel(), pieces.offset, pieces.rows, pieces.run, pieces.stride]
        table = np.stack(columns, axis=1).astype("<i8")
        blocks = pieces.blocks() if block_bytes else np.zeros((0, 2), np.int64)
        return cls(pieces, block_bytes, short, payload, regions, table.tobytes(), blocks)

    def request(self, seq: int, arena: ArenaRef, regions: Regions) -> wire.Request:
        """The request for this chunk's pieces of the read's regions."""
        named = np.stack([regions.slot[self.regions], regions.generation[self.regions]], axis=1)
        return wire.Request(seq, arena.nonce, self.block_bytes, named.astype("<u8").tobytes(), self.table)


class UcxTcp(Transport):
    """Asks the owners' serving processes for pieces, each over one connection."""

    def __init__(self, config: DataPlaneConfig, secret: bytes) -> None:
        self._secret = secret
        self._node = UcxNode(loopback=config.loopback)
        self.path = self._node.path(())
        self._connections = Connections(self._open, trusted=config.trusted_network)
        self._buffers = Buffers(wire.CHUNK_BYTES)
        # Chunks of pieces that are read again, kept as long as their reader keeps the pieces.
        self._known: WeakKeyDictionary[Repeat, tuple[int, list[_Chunk]]] = WeakKeyDictionary()

    async def read(self, arena: ArenaRef, pieces: Pieces, *, verify: bool) -> int:
        chunks = self._chunks(pieces, verify)
        again = 0

        async def work(chunk: _Chunk | None) -> None:
            nonlocal again
            while chunk is not None:
                times = await self._fetch(arena, chunk, pieces.regions)
                again += times
                chunk = next(chunks, None)

        firsts = [chunk for _, chunk in zip(range(wire.WINDOW), chunks, strict=False)]
        await run_all(work(chunk) for chunk in firsts)
        return again

    async def close(self) -> None:
        await self._connections.close()

    def _chunks(self, pieces: Pieces, verify: bool) -> Iterator[_Chunk]:
        """The pieces' chunks; those of pieces that are read again and again are made once."""
        block_bytes = 0
        if verify and pieces.regions.verifiable[pieces.region].any():
            block_bytes = pieces.regions.block_bytes
        if pieces.repeat is None:
            return _chunks(pieces, block_bytes)
        known = self._known.get(pieces.repeat)
        if known is None or known[0] != block_bytes:
            known = self._known[pieces.repeat] = block_bytes, list(_chunks(pieces, block_bytes))
        return iter(known[1])

    async def _fetch(self, arena: ArenaRef, chunk: _Chunk, regions: Regions) -> int:
        """Returns how often the request was sent again."""

        async def requested(connection: UcxConnection) -> None:
            async with connection.window:
                with connection.expecting():
                    await self._request(connection, arena, chunk, regions)

        _, times = await self._connections.until_answered(arena.owner, arena.ucx_address, requested)
        return times

    def path_to(self, arena: ArenaRef) -> str:
        connection = self._connections.open_to(arena.ucx_address)
        return self._node.path(connection.transports if connection is not None else ())

    def unreachable(self, arena: ArenaRef) -> PeerUnreachable | None:
        return self._connections.unreachable(arena.ucx_address)

    async def _request(
        self, connection: UcxConnection, arena: ArenaRef, chunk: _Chunk, regions: Regions
    ) -> None:
        request = chunk.request(connection.next_seq(), arena, regions)
        pooled = self._buffers.take() if chunk.payload is None else None
        try:
            payload = _runs(chunk.pieces, chunk.short, pooled) if chunk.payload is None else chunk.payload
            status = await self._exchange(connection, request, payload, len(chunk.blocks))
            wire.raise_failure(status, connection.peer)
            if chunk.block_bytes:
                _verify(regions, chunk.blocks, payload, status)
            if pooled is not None:
                scatter(pooled, chunk.pieces.take(np.flatnonzero(chunk.short)))
        finally:
            if pooled is not None:
                self._buffers.give(pooled)

    async def _exchange(
        self, connection: UcxConnection, request: wire.Request, payload: np.ndarray | Runs, blocks: int
    ) -> wire.Status:
        """One round trip. Returns or raises only when UCX is done with `payload`."""
        frame = np.empty(wire.status_bytes(blocks), np.uint8)
        parts = connection.exchange(request, payload, frame)
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            # The answer is on its way into the caller's memory: see it in, or end the connection.
            timer = asyncio.get_running_loop().call_later(_GRACE_S, _retire, connection)
            await settle(*parts)
            timer.cancel()
            raise
        failures = [failure for part in parts if (failure := failure_of(part)) is not None]
        if failures:
            connection.lose()
            await settle(*parts)
            raise failures[0]
        try:
            return wire.decode(wire.body_of(frame.data), wire.Status)
        except wire.FrameError as error:
            _retire(connection)
            raise PeerLost(f"{connection.peer} answered with {error}", "restart its owner") from error

    async def _open(self, address: str, peer: str, number: int) -> UcxConnection:
        return await UcxConnection.open(self._node, address, peer, number, self._secret)


def _retire(connection: UcxConnection) -> None:
    connection.retired = True
    connection.lose()


def _chunks(pieces: Pieces, block_bytes: int) -> Iterator[_Chunk]:
    """Chunks of at most CHUNK_BYTES, or IN_PLACE_CHUNK_BYTES where nobody has to buffer them, in order.

    What fills a long stretch of a buffer goes there directly; short stretches travel together. block_bytes:
    as in a request.
    """
    if not len(pieces):
        return
    if block_bytes:
        # A piece so sparse that its blocks would not fit one request is split by rows.
        spread = _blocks(pieces, block_bytes)
        if (spread > wire.MAX_BLOCKS).any():
            pieces = pieces.split_rows(np.maximum(pieces.rows * wire.MAX_BLOCKS // (2 * spread), 1))
    sizes = pieces.rows * pieces.run
    solid = (pieces.rows == 1) | (pieces.target_stride == pieces.run)
    continues = solid[1:] & solid[:-1] & (pieces.buffer[1:] == pieces.buffer[:-1])
    continues &= pieces.target_offset[1:] == (pieces.target_offset + sizes)[:-1]
    bounds = np.concatenate([[0], np.flatnonzero(~continues) + 1, [len(pieces)]])
    # Stretches in a row that are too short to stand alone are one group.
    long = solid[bounds[:-1]] & (np.add.reduceat(sizes, bounds[:-1]) >= _DIRECT_BYTES)
    opens = np.ones(len(long), bool)
    opens[1:] = long[1:] | long[:-1]
    for group_start in np.flatnonzero(opens).tolist():
        stop = group_start + 1
        while stop < len(opens) and not opens[stop]:
            stop += 1
        group = pieces.take(slice(int(bounds[group_start]), int(bounds[stop])))
        buffered = block_bytes or through_buffer(group.rows, group.run).any()
        for part in group.split(wire.CHUNK_BYTES if buffered else wire.IN_PLACE_CHUNK_BYTES):
            yield from _bounded(part, bool(long[group_start]), block_bytes)


def _bounded(pieces: Pieces, direct: bool, block_bytes: int) -> Iterator[_Chunk]:
    """Chunks of at most MAX_PIECES pieces and MAX_BLOCKS blocks."""
    first = 0
    blocks = np.zeros(len(pieces), np.int64)
    if block_bytes:
        blocks = np.cumsum(_blocks(pieces, block_bytes))
    while first < len(pieces):
        before = int(blocks[first - 1]) if first else 0
        stop = min(first + wire.MAX_PIECES, int(np.searchsorted(blocks, before + wire.MAX_BLOCKS, "right")))
        stop = max(stop, first + 1)
        yield _Chunk.of(pieces.take(slice(first, stop)), direct, block_bytes)
        first = stop


def _blocks(pieces: Pieces, block_bytes: int) -> np.ndarray:
    table = np.stack([pieces.offset, pieces.rows, pieces.run, pieces.stride], axis=1)
    return most_blocks(table, block_bytes)


def _runs(pieces: Pieces, short: np.ndarray, pooled: np.ndarray | None) -> np.ndarray | Runs:
    """Returns the answer's destination: in place, but end to end in `pooled` for pieces that are `short`."""
    if pooled is not None and short.all():
        return pooled[: pieces.size_bytes]
    first = np.array([address_of(buffer) for buffer in pieces.buffers])[pieces.buffer] + pieces.target_offset
    return runs_of(pieces, first, pieces.target_stride, short, pooled, pieces.buffers)


def _verify(regions: Regions, blocks: np.ndarray, payload: np.ndarray | Runs, status: wire.Status) -> None:
    if len(status.block_digests) != len(blocks):
        raise ChecksumMismatch(
            f"{len(status.block_digests)} digests for {len(blocks)} blocks", "the serving process is faulty"
        )
    verifiable = regions.verifiable
    for (region, block), digested in zip(blocks.tolist(), status.block_digests, strict=True):
        if verifiable[region]:
            expected = regions.checksum(region, block)
            refuse_mismatch(expected, digested, block, f"region {regions.slot[region]}")
    arrived = digest(payload)
    if arrived != status.payload_digest:
        raise ChecksumMismatch(
            f"{payload.nbytes} bytes arrived with xxh3 {arrived:016x}, sent was {status.payload_digest:016x}",
            "read again; if it stays, the network is faulty",
        )
