"""The scheduler of a run that goes on: of a directory that was named, or of the only one in runs/."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from earl.config.run import RunConfig
from earl.errors import ConfigError, EarlError, ServiceUnavailable
from earl.rpc.access import Access
from earl.rpc.token_file import Role
from earl.stack.codec import SchedulerClient

RUNS = Path("runs")
# Directories there that are asked whether their runs go on, the newest first; and for how long.
LOOKED_AT = 64
LOOK_S = 1.0
CALL_S = 10.0

T = TypeVar("T")


def with_run(run: Path | None, work: Callable[[SchedulerClient], Awaitable[T]]) -> T:
    """Asks the scheduler of a run.

    Raises ConfigError if none goes on, ServiceUnavailable if the named one does not, and what `work` raises.
    """
    directories = [run] if run is not None else newest()

    async def asked() -> T:
        client = await (named(directories[0]) if run is not None else only(directories))
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(asked())


def newest() -> list[Path]:
    """Directories of runs below RUNS, those first that were launched last."""
    found = sorted(RUNS.glob("*/run.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent for path in found[:LOOKED_AT]]


async def only(directories: Sequence[Path]) -> SchedulerClient:
    """Of the only run that goes on among these. Raises ConfigError."""

    async def look(directory: Path) -> SchedulerClient | None:
        try:
            return await named(directory, LOOK_S)
        except EarlError:
            return None

    tried = await asyncio.gather(*map(look, directories))
    alive = [(path, client) for path, client in zip(directories, tried, strict=True) if client is not None]
    if len(alive) == 1:
        return alive[0][1]
    for _, client in alive:
        await client.close()
    if alive:
        names = ", ".join(str(path) for path, _ in alive)
        raise ConfigError(f"several runs go on: {names}", "name one with --run RUN_DIR")
    raise ConfigError(f"no run in ./{RUNS} goes on", "name the directory of one that does with --run RUN_DIR")


async def named(directory: Path, deadline_s: float = CALL_S) -> SchedulerClient:
    """Of a run that goes on.

    Raises ServiceUnavailable if it does not: what answers at the address that it had may be another run.
    """
    config = config_of(directory)
    address = config.scheduler.bind
    client = SchedulerClient(address, Access.of(Role.OPERATOR))
    try:
        status = await client.status(deadline_s)
        if status.run != config.name:
            raise ServiceUnavailable(
                f"the run of {directory} does not go on: {status.run} is at {address} now",
                "name the directory of one that does with --run RUN_DIR",
            )
    except EarlError:
        await client.close()
        raise
    return client


def config_of(directory: Path) -> RunConfig:
    """Raises ConfigError."""
    try:
        return RunConfig.model_validate_json((directory / "run.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{directory} is no run directory of this version: {str(error).splitlines()[0]}",
            "give one like runs/demo-seed0",
        ) from None
