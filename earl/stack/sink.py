"""`python -m earl.stack.sink --run <dir>/run.json --to NAME`: one sink during a run, until it is stopped.

The run continues whatever the reason for its end (earl.stack.plan: expendable).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from earl.config.run import RunConfig
from earl.config.service import service_run
from earl.obs import log
from earl.obs.sinks import NAMES, Following, Sink, open_sink, pour
from earl.rpc.main import announce, run
from earl.waiting import until_first

POLL_S = 2.0

logger = logging.getLogger(__name__)


async def follow(
    directory: Path,
    name: str,
    config: RunConfig,
    stop: asyncio.Event,
    on_open: Callable[[], None] = lambda: None,
) -> int:
    """Sends points until `stop`, then those that are left; returns their number.

    on_open: called once the sink takes points.
    Raises ConfigError, and whatever the sink raises.
    """
    following = Following(directory, name)
    sink: Sink = await asyncio.to_thread(
        open_sink, name, directory, config.model_dump(mode="json"), following
    )
    count = 0
    try:
        on_open()
        while not stop.is_set():
            count += await asyncio.to_thread(pour, following, sink)
            await until_first(stop.wait(), timeout_s=POLL_S)
        return count + await asyncio.to_thread(pour, following, sink)
    finally:
        await asyncio.to_thread(sink.close)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m earl.stack.sink", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="run file, or a run.json")
    parser.add_argument("--to", choices=NAMES, required=True)
    arguments = parser.parse_args()
    name = f"sink-{arguments.to}"
    log.setup(name)

    async def serve(stop: asyncio.Event) -> None:
        config, directory = service_run(arguments.run)
        count = await follow(directory, arguments.to, config, stop, lambda: announce(name, ""))
        logger.info("%d points in all", count)

    run(serve)


if __name__ == "__main__":
    main()
