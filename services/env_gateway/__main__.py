"""`python -m services.env_gateway --run run.json [--name NAME]`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from earl.config.run import RunConfig
from earl.obs.log import setup
from earl.rpc.main import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m services.env_gateway")
    parser.add_argument("--run", type=Path, required=True, help="the resolved run file, run.json")
    parser.add_argument("--name", default="env_gateway")
    arguments = parser.parse_args()
    setup(arguments.name)

    async def serve_until(stop: asyncio.Event) -> None:
        config = RunConfig.model_validate_json(arguments.run.read_text())
        from services.env_gateway.serve import serve

        await serve(config, arguments.name, stop)

    run(serve_until)


if __name__ == "__main__":
    main()
