"""One process that serves environments: `python -m earl.env.replica module:Class --gateway HOST:PORT`.

What `earl env serve` starts several of, and what `earl env test` examines. With --listen HOST:PORT a
gateway dials it instead. Tokens and TLS are those of the environment (EARL_TOKEN, EARL_TLS_*). With --parent
it ends when that process has: nothing is left behind by a parent that was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
import time

from earl.env.base import ISOLATIONS
from earl.env.host import EnvHost
from earl.env.serve import load
from earl.obs.log import setup
from earl.rpc.access import Access
from earl.rpc.main import announce, run
from earl.rpc.token_file import Role
from earl.rpc.tokens import tokens_to_accept

DRAIN_S = 10.0
_POLL_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m earl.env.replica")
    parser.add_argument("target", help="package.module:Class, or a function that returns environments")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--gateway", default="", help="host:port to dial")
    where.add_argument("--listen", default="", help="host:port where a gateway dials")
    parser.add_argument("--name", default="env-host")
    parser.add_argument("--capacity", type=int, default=64, help="sessions open at once")
    parser.add_argument("--drain-s", type=float, default=DRAIN_S)
    parser.add_argument("--isolation", default="", choices=["", *ISOLATIONS], help="instead of its own")
    parser.add_argument("--parent", type=int, default=0, help="end when the parent is no longer this process")
    arguments = parser.parse_args()
    setup(arguments.name)
    if arguments.parent:
        watch = threading.Thread(target=_end_with, args=(arguments.parent, arguments.drain_s), daemon=True)
        watch.start()

    async def serve(stop: asyncio.Event) -> None:
        access = Access.of(Role.ENVIRONMENT)
        host = EnvHost(
            arguments.gateway,
            load(arguments.target),
            arguments.capacity,
            listen=arguments.listen,
            name=arguments.name,
            token=access.token,
            tls=access.tls,
            accepts=tokens_to_accept(),
            drain_s=arguments.drain_s,
            isolation=arguments.isolation,
        )
        await host.run(stop, ready=lambda: announce(arguments.name, host.address or arguments.gateway))

    run(serve)


def _end_with(parent: int, drain_s: float) -> None:
    """Drains once the parent has ended, and ends in any case: an environment may hold up the loop."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(drain_s + 5.0)
    os._exit(1)


if __name__ == "__main__":
    main()
