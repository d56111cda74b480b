"""`python -m services.rollout.engines.process FD ENGINE [--ahead]`: one rank of an engine.

FD is an inherited socket, by which the process learns which rank it is (rank_process.py), once its imports
are done. --ahead: no engine waits for it yet, so its imports leave the cores to engines that generate
(low_priority.py). It gets its channel, to the service for rank 0 and to rank 0 for a follower, and rank 0 one
to each follower. The channel's first message is wire.Start. When the channel closes, the process ends. vLLM
and SGLang start their own ranks: for EARL they are one process. A rank that runs out of memory ends with
EngineOutOfMemory's exit code.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable

import msgspec

from earl.bulk_import import bulk_import
from earl.errors import EngineOutOfMemory, ran_out_of_memory
from services.rollout.engines.contract import wire
from services.rollout.engines.process.low_priority import at_low_priority
from services.rollout.engines.process.rank_process import assigned


def main(arguments: list[str]) -> None:
    # Ctrl-C goes to the whole group; the service decides when its engines end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    number, engine = int(arguments[0]), arguments[1]
    with bulk_import():
        # Libraries of vLLM and SGLang are imported on the main thread, which alone may handle signals.
        ahead = engine == "torch" and "--ahead" in arguments[2:]
        run = at_low_priority(lambda: runner_of(engine)) if ahead else runner_of(engine)
    assignment = assigned(number)
    if assignment is None:
        return
    descriptors, sums = assignment
    channel, *followers = (wire.EngineChannel(socket.socket(fileno=fd)) for fd in descriptors)
    start, *commands = wire.command_decoder.decode(channel.receive_one())
    if not isinstance(start, wire.Start):
        raise wire.ChannelClosed("the first message is not Start")
    run(channel, followers, msgspec.structs.replace(start, sums=sums), commands)


def runner_of(engine: str) -> Callable[..., None]:
    """Imports what an engine needs; returns what runs a rank of it, given its channel, its followers'
    channels, its start and the commands that came with that."""
    if engine == "vllm":
        from services.rollout.engines.foreign.loop import EngineLoop
        from services.rollout.engines.vllm.engine import VllmEngine

        return lambda channel, _, *start: EngineLoop(channel, VllmEngine).run(*start)
    if engine == "sglang":
        from services.rollout.engines.foreign.loop import EngineLoop
        from services.rollout.engines.sglang.engine import SglangEngine

        return lambda channel, _, *start: EngineLoop(channel, SglangEngine).run(*start)
    from services.rollout.engines.torch.leader import Leader
    from services.rollout.engines.torch.ranks import follow

    def run(channel, followers, start, commands) -> None:
        if start.rank > 0:
            follow(channel, start)
        else:
            Leader(channel, followers).run(start, commands)

    return run


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
