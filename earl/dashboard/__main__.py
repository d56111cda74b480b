"""The dashboard of a run of the local stack: python -m earl.dashboard --run RUN.json [--name NAME]."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from earl.config.service import service_run
from earl.obs.log import setup
from earl.rpc.main import announce, await_peers, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m earl.dashboard", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="run file, or a run.json")
    parser.add_argument("--name", default="dashboard", help="of this process, in logs")
    arguments = parser.parse_args()
    setup(arguments.name)
    await_peers("earl.dashboard.serve")

    async def serving(stop: asyncio.Event) -> None:
        config, directory = service_run(arguments.run, "dashboard")
        from earl.dashboard.serve import forget_link, keep_link, serve  # heavy: after the configuration

        try:
            await serve(
                directory,
                config,
                bind=config.dashboard.bind or "127.0.0.1:0",
                stop=stop,
                on_link=keep_link(directory),
                on_ready=lambda address: announce(arguments.name, address),
            )
        finally:
            forget_link(directory)

    run(serving)


if __name__ == "__main__":
    main()
