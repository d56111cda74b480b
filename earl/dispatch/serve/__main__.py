"""The serving process: `python -m earl.dispatch.serve --wire ucx --bind HOST`, started by the owner.

Its first line of stdin is JSON {"secret", "path", "nonce", "incarnation"}; it ends when its stdin
does, so it never outlives its owner.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys

from earl.dispatch.memory.arena import MappedArena
from earl.obs import log
from earl.rpc.main import announce, run
from earl.waiting import until_first

NAME = "data-plane"


async def serve(stop: asyncio.Event, wire: str, host: str, port: int) -> None:
    """Serves until stdin ends or SIGTERM. Raises RegionGone, PortInUse, TransportUnavailable."""
    # A Ctrl-C meant for the owner reaches its children too: the owner decides when this one ends.
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin.buffer
    )
    orders = json.loads(await stdin.readline())
    arena = MappedArena(orders["path"], orders["nonce"], orders["incarnation"])
    # Each loads a UCX of its own: import only the one that is needed.
    if wire == "nixl":
        from earl.dispatch.serve.nixl_server import NixlServer as Server
    else:
        from earl.dispatch.serve.ucx_server import UcxServer as Server
    server = Server(arena, bytes.fromhex(orders["secret"]))
    announce(NAME, await server.start(host, port))
    await until_first(stdin.read(), stop.wait())
    await server.close()
    with contextlib.suppress(OSError):
        arena.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="earl.dispatch.serve", description=__doc__)
    parser.add_argument("--wire", choices=("ucx", "nixl"), required=True)
    parser.add_argument("--bind", required=True)
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    log.setup(NAME)
    run(lambda stop: serve(stop, arguments.wire, arguments.bind, arguments.port))


if __name__ == "__main__":
    main()
