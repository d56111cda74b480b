"""The embedded Valkey as a process of the stack: `python -m earl.stack.valkey --run RUN.json`.

The only module of the stack that needs the bus; the launcher starts it and never imports it. Its
ready line carries the server's URL. It ends on SIGTERM, and also when the server dies.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from earl.bus.embedded import EmbeddedValkey
from earl.errors import BusUnavailable
from earl.obs import log
from earl.rpc.main import announce, run
from earl.stack.ports import resolve_bind
from earl.stack.run_files import BIND_VARIABLE
from earl.waiting import until_first


def listens() -> str:
    """The address at which the server listens for other machines, "" for none."""
    bind = os.environ.get(BIND_VARIABLE, "")
    return resolve_bind(bind, BIND_VARIABLE) if bind else ""


async def serve(directory: Path, stop: asyncio.Event) -> None:
    """Serves until `stop`; BusUnavailable if the server does not start or dies."""
    server = EmbeddedValkey()
    announce("valkey", await server.start(directory, address=listens()))
    try:
        await until_first(stop.wait(), server.wait())
        if not stop.is_set():
            raise BusUnavailable(
                f"the embedded Valkey ended with exit code {server.returncode}", f"see {directory}/valkey.log"
            )
    finally:
        await server.stop()


def main() -> None:
    log.setup("valkey")
    directory = Path(sys.argv[sys.argv.index("--run") + 1]).parent / "valkey"
    run(lambda stop: serve(directory, stop))


if __name__ == "__main__":
    main()
