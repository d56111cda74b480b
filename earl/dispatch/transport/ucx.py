"""Reads over the wire: UCX on TCP, two-sided, answered by the owner's serving process.

```
read ─ pieces ─ chunks of ≤ 4 MiB ─► window of 8 a connection ─► request ─► payload straight into the
       target where both sides are contiguous, else into a pooled buffer and scattered ─► status ─► verify
```
Verification: the server digests the payload it sent and the region blocks it came from; the reader
compares the first with what arrived and the second with what was published, so that a slice is
checked end to end without reading more than the slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.descriptor import ArenaRef, RegionRef
from earl.dispatch.transport import wire
from earl.dispatch.transport.base import Piece, Transport, failure_of, run_all, settle
from earl.dispatch.transport.buffers import Buffers
from earl.dispatch.transport.connection import Connection, is_loopback
from earl.dispatch.transport.shm import refuse_mismatch
from earl.dispatch.transport.ucx_node import Node
from earl.errors import ChecksumMismatch, LayoutError, PeerLost, TransportUnavailable

# Below this a piece travels with others in one request.
_DIRECT_BYTES = 64 << 10
# How long a cancelled request may take to arrive before its connection is given up.
_GRACE_S = 0.25
_CONNECT_S = 10.0
# A request whose connection a neighbour's cancellation closed is sent again.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The pieces of one request; `checked`: their regions' blocks are to be digested."""

    pieces: list[Piece]
    size_bytes: int
    block_bytes: int


class UcxTcp(Transport):
    """Connections are made on first use and kept; one that failed is made anew by the next read."""

    path = "ucx-tcp"

    def __init__(self, config: DataPlaneConfig, secret: bytes) -> None:
        self._trusted = config.trusted_network
        self._secret = secret
        self._node = Node("lo" if config.loopback else "all")
        self._connections: dict[str, asyncio.Task[Connection]] = {}
        self._numbers = iter(range(1, 1 << 32))
        self._buffers = Buffers(wire.CHUNK_BYTES)

    async def read(self, arena: ArenaRef, pieces: Sequence[Piece], *, verify: bool) -> None:
        if any(piece.target.ndim > wire.MAX_DIMENSIONS for piece in pieces):
            raise LayoutError("a tensor of too many dimensions", f"use at most {wire.MAX_DIMENSIONS}")
        chunks = _chunks(pieces, verify)
        first = next(chunks, None)
        if first is None:
            return

        async def work(chunk: _Chunk | None) -> None:
            while chunk is not None:
                await self._fetch(arena, chunk)
                chunk = next(chunks, None)

        firsts = [first, *(chunk for _, chunk in zip(range(wire.WINDOW - 1), chunks, strict=False))]
        await run_all(work(chunk) for chunk in firsts)

    async def close(self) -> None:
        tasks = list(self._connections.values())
        self._connections.clear()
        for task in tasks:
            task.cancel()
            await settle(task)
            if not task.cancelled() and failure_of(task) is None:
                await task.result().close()
        self._node.close()

    async def _fetch(self, arena: ArenaRef, chunk: _Chunk) -> None:
        for attempt in range(_ATTEMPTS):
            connection = await self._connection(arena)
            try:
                async with connection.window:
                    await self._request(connection, arena, chunk)
                return
            except PeerLost:
                if not connection.retired or attempt == _ATTEMPTS - 1:
                    raise

    async def _request(self, connection: Connection, arena: ArenaRef, chunk: _Chunk) -> None:
        pieces = tuple(_wire_piece(piece) for piece in chunk.pieces)
        request = wire.Request(connection.next_seq(), arena.nonce, chunk.block_bytes, pieces)
        direct = len(chunk.pieces) == 1 and chunk.pieces[0].contiguous
        pooled = None if direct else self._buffers.take()
        try:
            payload = (
                wire.flat_bytes(chunk.pieces[0].target) if pooled is None else pooled[: chunk.size_bytes]
            )
            status = await self._exchange(connection, request, payload)
            wire.raise_failure(status, connection.peer)
            if chunk.block_bytes:
                _verify(chunk, request, payload, status)
            if pooled is not None:
                _scatter(payload, chunk.pieces)
        finally:
            if pooled is not None:
                self._buffers.give(pooled)

    async def _exchange(
        self, connection: Connection, request: wire.Request, payload: np.ndarray
    ) -> wire.Status:
        """One round trip. Returns or raises only when UCX is done with `payload`."""
        blocks = wire.block_count(request.pieces, request.block_bytes) if request.block_bytes else 0
        frame = np.empty(wire.status_bytes(blocks), np.uint8)
        parts = connection.exchange(request, payload, frame)
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            # The answer is on its way into the caller's memory: see it in, or end the connection.
            timer = asyncio.get_running_loop().call_later(_GRACE_S, self._retire, connection)
            await settle(*parts)
            timer.cancel()
            raise
        failures = [failure for part in parts if (failure := failure_of(part)) is not None]
        if failures:
            self._forget(connection)
            await settle(*parts)
            raise failures[0]
        try:
            return wire.decode(wire.body_of(frame.data), wire.Status)
        except wire.FrameError as error:
            self._retire(connection)
            raise PeerLost(f"{connection.peer} answered with {error}", "restart its owner") from error

    async def _connection(self, arena: ArenaRef) -> Connection:
        address = arena.ucx_address
        task = self._connections.get(address)
        if task is not None and task.done() and (failure_of(task) or not task.result().alive):
            task = None
        if task is None:
            if not is_loopback(address) and not self._trusted:
                raise TransportUnavailable(
                    f"{arena.owner} at {address} is off loopback and the wire carries no TLS",
                    "set data_plane.trusted_network = true",
                )
            task = asyncio.create_task(self._connect(address, f"{arena.owner} at {address}"))
            task.add_done_callback(failure_of)
            self._connections[address] = task
        return await asyncio.shield(task)

    async def _connect(self, address: str, peer: str) -> Connection:
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await Connection.open(self._node, address, peer, next(self._numbers), self._secret)
        except (OSError, TimeoutError, EOFError) as error:
            raise PeerLost(
                f"{peer} cannot be reached: {type(error).__name__} {error}", "its owner died or restarted"
            ) from error

    def _retire(self, connection: Connection) -> None:
        connection.retired = True
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        connection.lose()
        for address, task in list(self._connections.items()):
            if task.done() and failure_of(task) is None and task.result() is connection:
                del self._connections[address]


def _chunks(pieces: Sequence[Piece], verify: bool) -> Iterator[_Chunk]:
    """Requests of at most CHUNK_BYTES: large contiguous pieces alone, small ones together."""
    together: list[Piece] = []
    size_bytes = blocks = block_bytes = 0
    for whole in pieces:
        own_block_bytes = whole.region.checksum_block_bytes if verify and whole.region.checksums else 0
        for piece in whole.split(_limit(whole, own_block_bytes)):
            own_blocks = len(piece.blocks()) if own_block_bytes else 0
            if piece.size_bytes >= _DIRECT_BYTES and piece.contiguous:
                yield _Chunk([piece], piece.size_bytes, own_block_bytes)
                continue
            full = size_bytes + piece.size_bytes > wire.CHUNK_BYTES or len(together) == wire.MAX_PIECES
            if together and (full or own_block_bytes != block_bytes or blocks + own_blocks > wire.MAX_BLOCKS):
                yield _Chunk(together, size_bytes, block_bytes)
                together, size_bytes, blocks = [], 0, 0
            together.append(piece)
            size_bytes += piece.size_bytes
            blocks += own_blocks
            block_bytes = own_block_bytes
    if together:
        yield _Chunk(together, size_bytes, block_bytes)


def _limit(piece: Piece, block_bytes: int) -> int:
    """Bytes a request may carry of a piece so sparse that it would touch too many blocks otherwise."""
    spread = len(piece.blocks()) if block_bytes else 0
    if spread <= wire.MAX_BLOCKS:
        return wire.CHUNK_BYTES
    return max(
        piece.target.itemsize, min(wire.CHUNK_BYTES, piece.size_bytes * wire.MAX_BLOCKS // (2 * spread))
    )


def _wire_piece(piece: Piece) -> wire.WirePiece:
    region, target = piece.region, piece.target
    return wire.WirePiece(
        region.slot,
        region.generation,
        piece.offset_bytes,
        target.shape,
        piece.strides_bytes,
        target.itemsize,
    )


def _scatter(payload: np.ndarray, pieces: Sequence[Piece]) -> None:
    offset = 0
    for piece in pieces:
        data = payload[offset : offset + piece.size_bytes]
        np.copyto(piece.target, data.view(piece.target.dtype).reshape(piece.target.shape))
        offset += piece.size_bytes


def _verify(chunk: _Chunk, request: wire.Request, payload: np.ndarray, status: wire.Status) -> None:
    regions: dict[int, RegionRef] = {piece.region.slot: piece.region for piece in chunk.pieces}
    touched = wire.blocks_of(request.pieces, chunk.block_bytes)
    if len(status.block_digests) != len(touched):
        raise ChecksumMismatch(
            f"{len(status.block_digests)} digests for {len(touched)} blocks", "the serving process is faulty"
        )
    for (slot, block), found in zip(touched, status.block_digests, strict=True):
        refuse_mismatch(regions[slot].checksums[block], found, block, f"region {slot}")
    arrived = xxhash.xxh3_64_intdigest(payload.data)
    if arrived != status.payload_digest:
        raise ChecksumMismatch(
            f"{payload.nbytes} bytes arrived with xxh3 {arrived:016x}, sent was {status.payload_digest:016x}",
            "read again; if it stays, the network is faulty",
        )
