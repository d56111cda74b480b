"""A process of an env host's own, with one episode in it at a time: `Environment.isolation = "process"`.

Started by isolation.py with one end of a socket pair; speaks the environment stream's own messages over
it (Welcome, Reset, Step, Close there; Result, Progress back), so an episode runs as it would in the host
itself. Ends when the host closes the socket, and with the host however that ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import socket
import sys

from earl.env.packets import MAX_BYTES, packed, read_packet
from earl.env.runner import SessionRunner
from earl.env.serve import load
from earl.v1 import env_pb2

# How long the environment has to close when the host closes the socket.
CLOSE_S = 1.5
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


async def serve(end: socket.socket, target: str) -> None:
    """Plays what the other end of the socket asks for, until it is closed."""
    reader, writer = await asyncio.open_connection(sock=end)

    def send(message: env_pb2.HostMessage) -> None:
        writer.write(packed(message.SerializeToString()))

    runner = SessionRunner(load(target), 1, send, isolation="thread", hold_s=0.0)
    runner.max_text_bytes = MAX_BYTES  # the host has the gateway's own bound
    while (packet := await read_packet(reader)) is not None:
        message = env_pb2.GatewayMessage.FromString(packet)
        kind = message.WhichOneof("message")
        if kind == "welcome":
            runner.max_action_characters = message.welcome.max_action_characters
        elif kind == "reset":
            runner.reset(message.reset)
        elif kind == "step":
            runner.step(message.step)
        elif kind == "close":
            runner.drop(message.close.session)
    runner.close()
    await runner.wait_closed(CLOSE_S)


def end_with(parent: int) -> None:
    """Has the kernel kill this process when its parent dies. Linux only."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it died before the kernel knew


def main() -> None:
    """`python -m earl.env.host_process FD PARENT MEMORY_BYTES TARGET`; MEMORY_BYTES 0 for no bound."""
    descriptor, parent, memory_bytes = map(int, sys.argv[1:4])
    end_with(parent)
    if memory_bytes:
        # Heap and private mappings; not the address space, which libraries reserve and never use.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    asyncio.run(serve(socket.socket(fileno=descriptor), sys.argv[4]))
    os._exit(0)  # threads of an environment that did not end hold up nobody


if __name__ == "__main__":
    main()
