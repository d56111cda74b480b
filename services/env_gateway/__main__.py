"""`python -m services.env_gateway --run FILE [--name NAME]`: the environment gateway of one run."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from earl.bulk_import import bulk_import
from earl.config.service import service_run
from earl.obs.log import setup
from earl.rpc.main import await_peers, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m services.env_gateway", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="run file, or a run.json")
    parser.add_argument("--name", default="env_gateway", help="name in logs and events")
    arguments = parser.parse_args()
    setup(arguments.name)
    await_peers("services.env_gateway.serve")

    async def serve_until(stop: asyncio.Event) -> None:
        config, directory = service_run(arguments.run, "gateway")
        with bulk_import():  # after the configuration was read
            from services.env_gateway.serve import serve

        await serve(config, directory, arguments.name, stop)

    run(serve_until)


if __name__ == "__main__":
    main()
