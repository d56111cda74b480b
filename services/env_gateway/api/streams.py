"""Serves both directions of one stream: incoming messages are handled in order, outgoing ones are written.

Used for hosts that dial in, hosts that listen and clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from earl.env.frames import Frames
from earl.errors import DeadlineExceeded, EarlError, EnvProtocolError
from earl.rpc.outbox import Outbox
from earl.v1 import env_pb2
from earl.waiting import deadline, until_first
from services.env_gateway.gateway import Gateway

log = logging.getLogger(__name__)

HELLO_S = 10.0


async def exchange(
    frames: Frames, outbox: Outbox, handle: Callable[[Sequence[Any]], None], *, paced: bool = False
) -> None:
    """Reads and writes until either side ends.

    Raises what `handle`, reading or writing raised.
    paced: nothing is read while the peer leaves much unread, so that what it asks for cannot pile up.
    """

    async def read() -> None:
        while (messages := await frames.read()) is not None:
            handle(messages)
            if paced and outbox.crowded:
                await outbox.wait_for_space()

    await until_first(frames.send(outbox), outbox.failed(), read())


async def serve_host(gateway: Gateway, frames: Frames) -> None:
    """An env host's stream, from its Hello to its end, whichever side connected.

    Raises EnvProtocolError, DuplicateEnvironment, DeadlineExceeded; what reading and writing raise.
    """
    hello, rest = await _hello(frames)
    outbox = Outbox()
    host = gateway.attach(hello, outbox)
    epoch = host.epoch

    def handle(messages: Sequence[env_pb2.HostMessage]) -> None:
        gateway.mark_alive(host, epoch)
        for message in messages:
            gateway.handle_host(host, epoch, message)

    try:
        handle(rest)
        await exchange(frames, outbox, handle)
    except EarlError as error:
        log.warning("stream of host %s ended: %s", host.name, error)
        if isinstance(error, EnvProtocolError):
            gateway.broke(host, epoch, error)
        raise
    finally:
        outbox.close()
        gateway.detach(host, epoch)


async def _hello(frames: Frames) -> tuple[env_pb2.Hello, Sequence[env_pb2.HostMessage]]:
    late = DeadlineExceeded(f"no Hello within {HELLO_S:g} s of connecting", "send it first")
    async with deadline(HELLO_S, late):
        messages = await frames.read()
    if not messages:
        raise EnvProtocolError("the stream ended before Hello")
    first = messages[0]
    if first.WhichOneof("message") != "hello":
        raise EnvProtocolError(f"first message is {first.WhichOneof('message')}", "begin with Hello")
    return first.hello, messages[1:]
