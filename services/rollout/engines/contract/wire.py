"""The messages between a service and its engine, and how they are framed.

A frame is 4 bytes of length (little endian) and a msgpack list of messages; each side writes at
most one frame a step, so that the cost of a message is shared by the whole batch.
"""

from __future__ import annotations

import select
import socket
import struct

import msgspec

from earl import errors
from services.rollout.engines.contract.engine import (
    EngineCaps,
    EngineSpec,
    EngineStats,
    GenerateRequest,
    Generation,
    KvOffer,
    KvReport,
    LoadReport,
)

LENGTH = struct.Struct("<I")
# A frame longer than this is a broken stream, not a message.
MAX_FRAME_BYTES = 1 << 30
# A reader that reads nothing for so long is stuck.
SEND_S = 60.0


class WireError(msgspec.Struct, array_like=True):
    """An error of the catalogue in earl.errors on its way between processes. kind: its class's name."""

    kind: str
    message: str
    remedy: str = ""

    @classmethod
    def of(cls, error: BaseException) -> WireError:
        if isinstance(error, errors.EarlError):
            return cls(type(error).__name__, error.message, error.remedy)
        return cls("EngineError", f"{type(error).__name__}: {error}", "see the engine's log")

    def rebuild(self) -> errors.EarlError:
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, errors.EarlError)):
            kind = errors.EngineError
        return kind(self.message, self.remedy)


# --- to the engine --------------------------------------------------------------------------


class Start(msgspec.Struct, tag=True, array_like=True):
    """First message to every rank, from the service or from rank 0.

    store: file of the process group's store, "" if tp is 1. sums: descriptor of the memory in which ranks on
    CPUs add up, -1 if they use a process group; each rank puts the number that it was assigned.
    """

    spec: EngineSpec
    rank: int
    store: str
    sums: int = -1


class Generate(msgspec.Struct, tag=True, array_like=True):
    request: GenerateRequest
    # Send chunks as they come; otherwise one message at the end.
    stream: bool


class Abort(msgspec.Struct, tag=True, array_like=True):
    request_id: str


class Release(msgspec.Struct, tag=True, array_like=True):
    session: str


class EngineCall(msgspec.Struct, tag=True, array_like=True):
    """A command that is answered by a CallAnswer of the same number."""

    call: int


class Pause(EngineCall):
    keep: bool


class Resume(EngineCall):
    """Steps again."""


class BeginUpdate(EngineCall):
    version: int


class LoadWeights(EngineCall):
    version: int
    keys: list[str]
    deadline_s: float


class Commit(EngineCall):
    version: int


class GetStats(EngineCall):
    """Counters and gauges."""


class Sleep(EngineCall):
    """Returns the memory of weights and KV."""


class Wake(EngineCall):
    """Takes the memory of weights and KV again."""


class OfferKv(EngineCall):
    name: str
    known: dict[str, int]
    deadline_s: float


class TakeKv(EngineCall):
    offer: KvOffer
    deadline_s: float


class WithdrawKv(EngineCall):
    name: str


class Stop(msgspec.Struct, tag=True, array_like=True):
    """Last message to an engine."""


# To engines whose caps.live_reshape is True.
HandoverCommand = OfferKv | TakeKv | WithdrawKv
Command = (
    Start
    | Generate
    | Abort
    | Release
    | Pause
    | Resume
    | BeginUpdate
    | LoadWeights
    | Commit
    | GetStats
    | Sleep
    | Wake
    | HandoverCommand
    | Stop
)

# --- from the engine ------------------------------------------------------------------------


class Ready(msgspec.Struct, tag=True, array_like=True):
    """workers: process ids of what the engine started itself."""

    caps: EngineCaps
    workers: list[int] = []


class RequestRefused(msgspec.Struct, tag=True, array_like=True):
    """A request ended with an error."""

    request_id: str
    error: WireError


CallResult = EngineStats | LoadReport | KvOffer | KvReport | None


class CallAnswer(msgspec.Struct, tag=True, array_like=True):
    """The end of a call; of call 0: why the start failed."""

    call: int
    error: WireError | None = None
    result: CallResult = None

    @classmethod
    def of(cls, call: int, outcome: CallResult | errors.EarlError) -> CallAnswer:
        """The answer to a call that ended with `outcome`."""
        if isinstance(outcome, errors.EarlError):
            return cls(call, WireError.of(outcome))
        return cls(call, result=outcome)


# A Generation is a whole request, or a part of one that streams.
Reply = Ready | Generation | RequestRefused | CallAnswer

encoder = msgspec.msgpack.Encoder()
command_decoder = msgspec.msgpack.Decoder(list[Command])
reply_decoder = msgspec.msgpack.Decoder(list[Reply])


def frame(messages: list) -> bytes:
    """One frame of these messages."""
    body = encoder.encode(messages)
    return LENGTH.pack(len(body)) + body


class ChannelClosed(ConnectionError):
    """The other end of a channel has closed it."""


class EngineChannel:
    """The engine's end of a stream socket: whole frames in and out. Only receive_one and send block.

    Raises ChannelClosed when the other end has closed it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._received = bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    def receive(self) -> list[bytes]:
        """The bodies of all frames that have arrived; does not block."""
        while self._read():
            pass
        return list(iter(self._take, None))

    def receive_one(self, deadline_s: float | None = None) -> bytes:
        """The body of the next frame. Blocks until it has come; ChannelClosed if the other end has closed or
        has sent nothing for deadline_s."""
        while (body := self._take()) is None:
            if not select.select([self.sock], [], [], deadline_s)[0]:
                raise ChannelClosed(f"nothing was received for {deadline_s} s")
            self._read()
        return body

    def _read(self) -> bool:
        """Adds what has arrived to what was received; False if there was nothing."""
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("closed by the other end")
        self._received += data
        return True

    def _take(self) -> bytes | None:
        if len(self._received) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(self._received)
        if size > MAX_FRAME_BYTES:
            raise ChannelClosed(f"frame of {size} bytes is longer than {MAX_FRAME_BYTES}")
        end = LENGTH.size + size
        if len(self._received) < end:
            return None
        body = bytes(self._received[LENGTH.size : end])
        del self._received[:end]
        return body

    def send(self, body: bytes) -> None:
        """Writes one frame; blocks while the socket is full, for SEND_S at most."""
        data = memoryview(LENGTH.pack(len(body)) + body)
        while data:
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                if not select.select([], [self.sock], [], SEND_S)[1]:
                    raise ChannelClosed(f"the other end read nothing for {SEND_S} s") from None
            except OSError as error:
                raise ChannelClosed(str(error)) from error
