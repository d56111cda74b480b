"""`python -m services.rollout --run FILE [--name NAME]`: one rollout worker."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from earl.bulk_import import bulk_import
from earl.config.service import service_run
from earl.obs import log
from earl.rpc.main import await_peers, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m services.rollout", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="run file, or a run.json")
    parser.add_argument("--name", default="rollout-0", help="the worker's name, unique in the run")
    arguments = parser.parse_args()
    log.setup(arguments.name)
    await_peers("services.rollout.service")

    async def serve_until(stop: asyncio.Event) -> None:
        config, directory = service_run(arguments.run, "rollout")
        with bulk_import():  # after the configuration was read
            from services.rollout.service import serve

        await serve(config, directory, arguments.name, stop)

    run(serve_until)


if __name__ == "__main__":
    main()
