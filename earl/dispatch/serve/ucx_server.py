"""Answers reads of one arena over the wire; the loop of the serving process.

```
accept ─ handshake ─ endpoint ─► receive request ─► validate ─► gather or send in place ─► re-check ─► status
```
Nothing outside the arena's published regions is ever sent: every piece is checked against the
region's own extent in the slot table, before and after its bytes were read. A frame that breaks
the protocol closes its connection and harms no other.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass

import numpy as np

from earl.dispatch.describe.pieces import Pieces
from earl.dispatch.describe.regions import Regions
from earl.dispatch.memory.arena import MappedArena
from earl.dispatch.serve.listener import HANDSHAKE_S, Listener
from earl.dispatch.transport import wire
from earl.dispatch.transport.base import settle
from earl.dispatch.transport.copying import gather
from earl.dispatch.transport.handshake import answer_beats, receive_hello, welcome
from earl.dispatch.transport.ucx.buffers import Buffers
from earl.dispatch.transport.ucx.endpoint import Endpoint
from earl.dispatch.transport.ucx.node import UcxNode
from earl.dispatch.transport.ucx.runs import Runs, address_of, digest, runs_of, spread
from earl.dispatch.transport.ucx.ucp import through_buffer
from earl.errors import RegionGone
from earl.loopback import is_loopback

# How long a reader may take for one answer, also on a slow network: a frozen one must not keep buffers.
_TAKEN_S = 30.0
# Buffers for gathered payloads, of all connections and of each: a few stay in the processor's cache.
_GATHERING = 16
_GATHERING_OF_ONE = 2
_NOTHING = np.empty(0, np.uint8)
_SENT = wire.Status("", "", 0, ())
# Requests whose decoded pieces are cached, at most some 100 KiB each.
_REQUESTS_KEPT = 64
_REGION_BYTES = 16
# More bits than an offset in a region has.
_APART_BITS = 42


class UcxServer:
    """Serves one mapped arena to all holders of the run's secret."""

    def __init__(self, arena: MappedArena, secret: bytes) -> None:
        self._arena = arena
        self._secret = secret
        self._node: UcxNode | None = None
        self._listener = Listener(self._serve)
        self._numbers = iter(range(1, 1 << 32))
        self._buffers = Buffers(wire.CHUNK_BYTES)
        self._gathering = asyncio.Semaphore(_GATHERING)

    async def start(self, host: str, port: int) -> str:
        """Listen; returns host:port. Raises PortInUse, TransportUnavailable."""
        self._node = UcxNode(loopback=is_loopback(host))
        return await self._listener.start(host, port)

    async def close(self) -> None:
        """Closes every connection; readers see PeerLost."""
        await self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        async with asyncio.timeout(HANDSHAKE_S):
            endpoint, hello, number, key = await self._shake(reader, writer, peer)
        gone = asyncio.create_task(_abort_when_closed(reader, writer, endpoint))
        try:
            await self._answer_all(endpoint, hello.connection, number, key)
        finally:
            endpoint.abort()
            gone.cancel()
            await settle(gone)

    async def _shake(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> tuple[Endpoint, wire.Hello, int, bytes]:
        assert self._node is not None
        hello, challenge = await receive_hello(reader, writer, self._secret)
        number = next(self._numbers)
        endpoint = self._node.endpoint(peer)
        try:
            endpoint.connect(hello.ucx_address)
            await welcome(writer, self._secret, challenge, hello, endpoint.address, number)
        except BaseException:
            endpoint.abort()
            raise
        return endpoint, hello, number, wire.session_key(self._secret, challenge, hello.nonce)

    async def _answer_all(self, endpoint: Endpoint, connection: int, number: int, key: bytes) -> None:
        frame = np.empty(wire.REQUEST_FRAME_BYTES, np.uint8)
        window, gathering = asyncio.Semaphore(wire.WINDOW), asyncio.Semaphore(_GATHERING_OF_ONE)
        answering: set[asyncio.Task[None]] = set()

        def answered(task: asyncio.Task[None]) -> None:
            answering.discard(task)
            window.release()
            # An answer that failed, or that was not received, ends this reader's connection alone.
            if not task.cancelled() and task.exception() is not None:
                endpoint.abort()

        try:
            while True:
                await window.acquire()
                await endpoint.receive(frame, wire.request_tag(number))
                request = wire.decode_request(frame.data, key)
                task = asyncio.create_task(self._answer(endpoint, connection, request, gathering))
                answering.add(task)
                task.add_done_callback(answered)
        finally:
            endpoint.abort()
            for task in list(answering):
                await settle(task)

    async def _answer(
        self, endpoint: Endpoint, connection: int, request: wire.Request, gathering: asyncio.Semaphore
    ) -> None:
        requested = _decoded(request.pieces, len(request.regions) // _REGION_BYTES)
        if not requested.short_bytes:
            return await self._send(endpoint, connection, request, requested, None)
        async with gathering, self._gathering:
            buffer = self._buffers.take(requested.short_bytes)
            try:
                await self._send(endpoint, connection, request, requested, buffer)
            except TimeoutError:
                raise  # the buffer is not given back: UCX may read it until the endpoint has ended
            except BaseException:
                self._buffers.give(buffer)
                raise
            self._buffers.give(buffer)

    async def _send(
        self,
        endpoint: Endpoint,
        connection: int,
        request: wire.Request,
        requested: _RequestPieces,
        buffer: np.ndarray | None,
    ) -> None:
        """The payload, then its status. Raises TimeoutError, PeerLost."""
        try:
            regions, payload, status = self._prepare(request, requested, buffer)
        except RegionGone as error:
            regions, payload, status = None, _NOTHING, wire.status_of(error)
        async with asyncio.timeout(_TAKEN_S):
            await endpoint.send(payload, wire.payload_tag(connection, request.seq))
            if regions is not None:
                status = self._recheck(regions, status)
            await endpoint.send(wire.encode(status), wire.status_tag(connection, request.seq))

    def _prepare(
        self, request: wire.Request, requested: _RequestPieces, buffer: np.ndarray | None
    ) -> tuple[Regions, np.ndarray | Runs, wire.Status]:
        """The regions, the payload and its digests; short pieces are gathered into `buffer`."""
        arena = self._arena
        if request.arena_nonce != arena.nonce or arena.abandoned:
            raise RegionGone(f"{arena.path} is not arena {request.arena_nonce:x}", "read a newer descriptor")
        slots, generations = request.region_table().T
        slots = slots.astype(np.int64)
        offsets, sizes = arena.extents(slots, generations)
        arena.refuse_beyond(slots, sizes, requested.reach)
        block_bytes = request.block_bytes
        regions = Regions(slots, generations, offsets, sizes, *_no_checksums(len(slots)), block_bytes)
        payload = self._payload(regions, requested, buffer)
        if not block_bytes:
            return regions, payload, _SENT
        digests = arena.digests(regions, requested.pieces(regions).blocks().tolist())
        return regions, payload, wire.Status("", "", digest(payload), tuple(digests))

    def _payload(
        self, regions: Regions, requested: _RequestPieces, buffer: np.ndarray | None
    ) -> np.ndarray | Runs:
        memory = self._arena.memory
        if buffer is None:
            return requested.runs(memory, regions.offset_bytes)
        pieces = requested.pieces(regions)
        gathered = pieces.take(np.flatnonzero(requested.short))
        gather(memory, gathered, buffer)
        if len(gathered) == len(pieces):
            return buffer[: pieces.size_bytes]
        first = address_of(memory) + pieces.start
        return runs_of(pieces, first, pieces.stride, requested.short, buffer, memory)

    def _recheck(self, regions: Regions, status: wire.Status) -> wire.Status:
        try:
            self._arena.check(regions.slot, regions.generation)
        except RegionGone as error:
            return wire.status_of(error)
        return status


@dataclass(frozen=True, slots=True, eq=False)
class _RequestPieces:
    """A request's pieces, decoded: the same for every version's regions.

    table: int64[P, 5], as in the request. short: bool[P], which pieces go through a buffer; short_bytes: of
    all of them. reach: int64[R], how far into each region is read. region, start, length: int64[N], the runs,
    none if a piece is short; start counts from the region's start.
    """

    table: np.ndarray
    short: np.ndarray
    short_bytes: int
    reach: np.ndarray
    region: np.ndarray
    start: np.ndarray
    length: np.ndarray

    def pieces(self, regions: Regions) -> Pieces:
        """The pieces of these regions, without target buffers."""
        region, offset, rows, run, stride = self.table.T
        nowhere = np.zeros(len(region), np.int64)
        return Pieces(
            regions, region.astype(np.int32), offset, rows, run, stride, (), nowhere, nowhere, nowhere
        )

    def runs(self, memory: np.ndarray, offset_bytes: np.ndarray) -> np.ndarray | Runs:
        """Locates the pieces' runs in uint8 `memory`. offset_bytes: int64[R], the regions' offsets."""
        start = offset_bytes[self.region] + self.start
        if len(start) == 1:
            return memory[start[0] : start[0] + self.length[0]]
        table = np.stack([start + address_of(memory), self.length], axis=1)
        return Runs(table.view(np.uint64), memory)


@functools.lru_cache(maxsize=_REQUESTS_KEPT)
def _decoded(pieces: bytes, regions: int) -> _RequestPieces:
    """Decodes a request's pieces, checked before. Cached: readers repeat them for every version."""
    table = np.frombuffer(pieces, "<i8").reshape(-1, 5)
    region, offset, rows, run, stride = table.T
    short = through_buffer(rows, run)
    reach = np.zeros(regions, np.int64)
    np.maximum.at(reach, region, offset + (rows - 1) * stride + run)
    short_bytes = int((rows * run)[short].sum())
    runs = np.zeros((0, 2), np.int64)
    if not short_bytes:
        # Regions so far apart that no run joins another region's.
        runs = spread((region << _APART_BITS) + offset, rows, run, stride)
    start, length = np.ascontiguousarray(runs.T)
    return _RequestPieces(
        table, short, short_bytes, reach, start >> _APART_BITS, start & ((1 << _APART_BITS) - 1), length
    )


@functools.cache
def _no_checksums(regions: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(regions + 1, np.int64), np.zeros(0, np.uint64)


async def _abort_when_closed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, endpoint: Endpoint
) -> None:
    await answer_beats(reader, writer)
    endpoint.abort()
