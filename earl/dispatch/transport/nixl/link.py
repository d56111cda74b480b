"""One reader's connection to one serving process that offers its arena to NIXL."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

import msgspec
import numpy as np

from earl.dispatch.memory.arena_file import SLOT_BYTES, Header
from earl.dispatch.transport import wire
from earl.dispatch.transport.connections import PeerSocket
from earl.dispatch.transport.handshake import greet
from earl.dispatch.transport.nixl.agent import Wire
from earl.dispatch.transport.nixl.node import NixlNode
from earl.errors import PeerLost, TransportUnavailable


class NixlOffer(msgspec.Struct, frozen=True):
    """The offer of a serving process to an authenticated reader, in the handshake's Welcome.

    wire: what its agent uses. agent, metadata: its name, and NIXL's description of it and its memory.
    base: where the arena's file is mapped there; header: the file's first bytes.
    """

    wire: Wire
    agent: str
    metadata: bytes
    base: int
    size_bytes: int
    header: bytes


# Fetches in flight on one link (on the wire, being copied out, requested), and small ones.
CONCURRENCY = 3
_SMALL_CONCURRENCY = 32


class NixlLink:
    """A reader's connection to a serving process. `ended` is done when either side has ended it.

    retired: never; one request's end harms no other.
    """

    retired = False

    def __init__(
        self,
        node: NixlNode,
        offer: NixlOffer,
        peer: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Raises RegionGone when the offer is of no arena."""
        self._node = node
        self._base = np.uint64(offer.base)
        self.agent = offer.agent
        self.header = Header.unpack(offer.header, peer, offer.size_bytes)
        self.peer = peer
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.window = asyncio.Semaphore(CONCURRENCY)
        self.small_window = asyncio.Semaphore(_SMALL_CONCURRENCY)
        self._socket = PeerSocket(reader, writer, peer, self.lose)

    @classmethod
    async def open(
        cls, node: NixlNode, wire_here: Wire, address: str, peer: str, number: int, secret: bytes
    ) -> NixlLink:
        """Raises PeerLost, OSError or EOFError when nobody answers, RegionGone, TransportUnavailable."""
        reader, writer, welcome, _ = await greet(address, peer, secret, b"", number)
        try:
            offer: NixlOffer = wire.decode(welcome.offer, NixlOffer)
            if offer.wire != wire_here:
                raise TransportUnavailable(
                    f"{peer} serves NIXL over {offer.wire}, this machine has {wire_here}",
                    'read it with data_plane.transport = "ucx", or give both machines the same wire',
                )
            await node.add_peer(offer.metadata, offer.agent)
            return cls(node, offer, peer, reader, writer)
        except wire.FrameError as error:
            writer.close()
            raise TransportUnavailable(f"{peer} offers no NIXL: {error.message}", error.remedy) from error
        except BaseException:
            writer.close()
            raise

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    def addresses(self, offset_bytes: np.ndarray) -> np.ndarray:
        """uint64[N]: the serving process's addresses of these offsets (int64[N]) of the arena's file."""
        return self._base + offset_bytes.astype(np.uint64)

    def slots(self, slot: np.ndarray) -> np.ndarray:
        """int64[N]: where the table's entries of these slots begin in the arena's file."""
        return self.header.table_offset + slot.astype(np.int64) * SLOT_BYTES

    def expecting(self) -> AbstractContextManager[None]:
        """An answer is expected within the block: the peer's silence ends the connection."""
        return self._socket.expecting()

    def lost(self) -> PeerLost:
        """The error of a connection that has ended."""
        return self._socket.unreachable or PeerLost(
            f"{self.peer} ended the connection", "its owner died, restarted or closed its arena"
        )

    def lose(self) -> None:
        """Ends it now, and with it the wait for its transfers."""
        if self.alive:
            self.ended.set_result(None)
            self._socket.lose()
            self._node.remove_peer(self.agent)

    async def close(self) -> None:
        """Ends it and waits for its socket's watcher."""
        self.lose()
        await self._socket.close()
