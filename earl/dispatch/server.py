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
import contextlib
import logging

import numpy as np

from earl.dispatch.arena import MappedArena
from earl.dispatch.pieces import Pieces, Regions
from earl.dispatch.transport import wire
from earl.dispatch.transport.base import settle
from earl.dispatch.transport.buffers import Buffers
from earl.dispatch.transport.copying import gather
from earl.dispatch.transport.handshake import hear, is_loopback, welcome
from earl.dispatch.transport.runs import Runs, address_of, digest, runs_of
from earl.dispatch.transport.ucp import through_buffer
from earl.dispatch.transport.ucx_node import Endpoint, Node
from earl.errors import PeerLost, PortInUse, RegionGone

log = logging.getLogger(__name__)

_HANDSHAKE_S = 5.0
# How long a reader may take for one answer, on a slow network too: a frozen one must not keep buffers.
_TAKEN_S = 30.0
_MAX_CONNECTIONS = 1024
# Buffers for gathered payloads: of all connections, and of one. Few stay in the processor's cache.
_GATHERING = 16
_GATHERING_OF_ONE = 2
_NOTHING = np.empty(0, np.uint8)
# Columns of a request's pieces.
_ROWS, _RUN = 2, 3


class ArenaServer:
    """Serves one mapped arena to whoever holds the run's secret."""

    def __init__(self, arena: MappedArena, secret: bytes) -> None:
        self._arena = arena
        self._secret = secret
        self._node: Node | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._numbers = iter(range(1, 1 << 32))
        self._buffers = Buffers(wire.CHUNK_BYTES)
        self._gathering = asyncio.Semaphore(_GATHERING)

    async def start(self, host: str, port: int) -> str:
        """Listen; returns host:port. Raises PortInUse, TransportUnavailable."""
        self._node = Node("lo" if is_loopback(f"{host}:{port}") else "all")
        try:
            self._server = await asyncio.start_server(self._accept, host, port)
        except OSError as error:
            raise PortInUse(
                f"{host}:{port} cannot be bound: {error.strerror}", "set data_plane.bind"
            ) from error
        bound = self._server.sockets[0].getsockname()[1]
        return f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"

    async def close(self) -> None:
        """Close every connection; readers see PeerLost."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
            await settle(task)
        if self._node is not None:
            self._node.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        peer = "reader at {}:{}".format(*writer.get_extra_info("peername")[:2])
        try:
            if len(self._connections) <= _MAX_CONNECTIONS:
                await self._serve(reader, writer, peer)
        except (PeerLost, OSError, EOFError, TimeoutError):
            log.info("%s left", peer)
        except wire.FrameError as error:
            log.warning("%s refused: %s", peer, error.message)
        except asyncio.CancelledError:
            pass  # the server closes; asyncio would log it as a failure
        finally:
            writer.close()
            self._connections.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        async with asyncio.timeout(_HANDSHAKE_S):
            endpoint, hello, number, key = await self._shake(reader, writer, peer)
        gone = asyncio.create_task(_ended(reader, endpoint))
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
        hello, challenge = await hear(reader, writer, self._secret)
        number = next(self._numbers)
        endpoint = self._node.connect(hello.ucx_address, peer)
        await welcome(writer, self._secret, challenge, hello, self._node.address, number)
        return endpoint, hello, number, wire.session_key(self._secret, challenge, hello.nonce)

    async def _answer_all(self, endpoint: Endpoint, connection: int, number: int, key: bytes) -> None:
        frame = np.empty(wire.REQUEST_FRAME_BYTES, np.uint8)
        window, gathering = asyncio.Semaphore(wire.WINDOW), asyncio.Semaphore(_GATHERING_OF_ONE)
        answering: set[asyncio.Task[None]] = set()

        def answered(task: asyncio.Task[None]) -> None:
            answering.discard(task)
            window.release()
            # An answer that failed, or that nobody took, is the end of this reader and of no other.
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
        rows, run = request.piece_table()[:, _ROWS : _RUN + 1].T
        short = through_buffer(rows, run)
        async with contextlib.AsyncExitStack() as held:
            buffer = None
            if short.any():
                await held.enter_async_context(gathering)
                await held.enter_async_context(self._gathering)
                buffer = self._buffers.take(int((rows * run)[short].sum()))
            try:
                try:
                    regions, payload, status = self._prepare(request, short, buffer)
                except RegionGone as error:
                    regions, payload, status = None, _NOTHING, wire.failed(error)
                async with asyncio.timeout(_TAKEN_S):
                    await endpoint.send(payload, wire.payload_tag(connection, request.seq))
                    if regions is not None:
                        status = self._recheck(regions, status)
                    await endpoint.send(wire.encode(status), wire.status_tag(connection, request.seq))
            except TimeoutError:
                buffer = None  # not given back: UCX may look at it until the endpoint has ended
                raise
            finally:
                if buffer is not None:
                    self._buffers.give(buffer)

    def _prepare(
        self, request: wire.Request, short: np.ndarray, buffer: np.ndarray | None
    ) -> tuple[Regions, np.ndarray | Runs, wire.Status]:
        """The regions, the payload and its digests; pieces that are `short` are gathered into `buffer`."""
        arena = self._arena
        if request.arena_nonce != arena.nonce or arena.abandoned:
            raise RegionGone(f"{arena.path} is not arena {request.arena_nonce:x}", "read a newer descriptor")
        slots, generations = request.region_table().T
        slots = slots.astype(np.int64)
        none = np.zeros(len(slots) + 1, np.int64), np.zeros(0, np.uint64)
        block_bytes = request.block_bytes
        regions = Regions(slots, generations, *arena.extents(slots, generations), *none, block_bytes)
        pieces = _pieces(regions, request.piece_table())
        arena.check_extents(pieces)
        payload = self._payload(pieces, short, buffer)
        if not block_bytes:
            return regions, payload, wire.Status("", "", 0, ())
        digests = arena.digests(regions, pieces.blocks().tolist())
        return regions, payload, wire.Status("", "", digest(payload), tuple(digests))

    def _payload(self, pieces: Pieces, short: np.ndarray, buffer: np.ndarray | None) -> np.ndarray | Runs:
        memory = self._arena.memory
        first = pieces.regions.offset_bytes[pieces.region] + pieces.offset
        if len(pieces) == 1 and pieces.rows[0] == 1 and buffer is None:
            return memory[first[0] : first[0] + pieces.run[0]]
        if buffer is not None:
            gathered = pieces.take(np.flatnonzero(short))
            gather(memory, gathered, buffer)
            if len(gathered) == len(pieces):
                return buffer[: pieces.size_bytes]
        return runs_of(pieces, address_of(memory) + first, pieces.stride, short, buffer, memory)

    def _recheck(self, regions: Regions, status: wire.Status) -> wire.Status:
        try:
            self._arena.check(regions.slot, regions.generation)
        except RegionGone as error:
            return wire.failed(error)
        return status


def _pieces(regions: Regions, table: np.ndarray) -> Pieces:
    """What a request asks for, with nowhere to go."""
    region, offset, rows, run, stride = table.T
    nowhere = np.zeros(len(table), np.int64)
    return Pieces(regions, region.astype(np.int32), offset, rows, run, stride, (), nowhere, nowhere, nowhere)


async def _ended(reader: asyncio.StreamReader, endpoint: Endpoint) -> None:
    with contextlib.suppress(OSError):
        await reader.read(1)  # nothing more is said here: whatever ends it is the reader's end
    endpoint.abort()
