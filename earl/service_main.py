"""The command line of a service process, `python -m PACKAGE --run FILE [--name NAME]`, and how it starts."""

from __future__ import annotations

import argparse
import asyncio
import importlib
from pathlib import Path
from typing import NoReturn

from earl.bulk_import import bulk_import
from earl.config.service import service_run
from earl.obs import log
from earl.rpc.main import await_peers, run

IN_LOGS = "name in logs and events"


def service_arguments(package: str, about: str | None, name: str, name_help: str) -> argparse.Namespace:
    """The arguments `run` (a path) and `name` of this process; name: unless another is given."""
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=about)
    parser.add_argument("--run", type=Path, required=True, help="run file, or a run.json")
    parser.add_argument("--name", default=name, help=name_help)
    return parser.parse_args()


def service_main(
    module: str, section: str, about: str | None, name: str, name_help: str = IN_LOGS
) -> NoReturn:
    """Runs a service in this process, which then ends.

    module: has the coroutine function `serve(config, run_dir, name, stop)`. section: the service's name for
    `service_run`. about: for --help.
    """
    arguments = service_arguments(module.rpartition(".")[0], about, name, name_help)
    log.setup(arguments.name)
    await_peers(module)

    async def serve_until(stop: asyncio.Event) -> None:
        config, directory = service_run(arguments.run, section)
        with bulk_import():  # after the configuration was read
            serve = importlib.import_module(module).serve
        await serve(config, directory, arguments.name, stop)

    run(serve_until)
