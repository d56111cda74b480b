"""`python -m services.rollout.engines.process FD [FOLLOWER_FD ...]`: one rank of an engine.

FD is an inherited socket: to the service for rank 0, which also inherits one socket for each
follower; to rank 0 for a follower. The first message is wire.Start. When the socket closes, the
process ends. vLLM and SGLang start their own ranks: for EARL they are one process.
A rank that runs out of memory ends with EngineOutOfMemory's exit code.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback

from earl.bulk_import import bulk_import
from earl.errors import EngineOutOfMemory, ran_out_of_memory
from services.rollout.engines.contract import wire


def main(arguments: list[str]) -> None:
    # Ctrl-C goes to the whole group; the service decides when its engines end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel, *followers = (wire.EngineChannel(socket.socket(fileno=int(fd))) for fd in arguments)
    start, *commands = wire.command_decoder.decode(channel.receive_one())
    if not isinstance(start, wire.Start):
        raise wire.ChannelClosed("the first message is not Start")
    if start.spec.engine == "vllm":
        with bulk_import():
            from services.rollout.engines.foreign.loop import EngineLoop
            from services.rollout.engines.vllm.engine import VllmEngine

        EngineLoop(channel, VllmEngine).run(start, commands)
    elif start.spec.engine == "sglang":
        with bulk_import():
            from services.rollout.engines.foreign.loop import EngineLoop
            from services.rollout.engines.sglang.engine import SglangEngine

        EngineLoop(channel, SglangEngine).run(start, commands)
    elif start.rank > 0:
        with bulk_import():
            from services.rollout.engines.torch.ranks import follow

        follow(channel, start)
    else:
        with bulk_import():
            from services.rollout.engines.torch.leader import Leader

        Leader(channel, followers).run(start, commands)


if __name__ == "__main__":
    code = 1
    try:
        main(sys.argv[1:])
        code = 0
    except wire.ChannelClosed:
        code = 0
    except Exception as error:  # noqa: BLE001  (the process ends here; the service sees the exit code)
        traceback.print_exc()
        if ran_out_of_memory(error):
            code = EngineOutOfMemory.exit_code
    # Process groups and the weights thread have nothing to save; their teardown may hang.
    os._exit(code)
