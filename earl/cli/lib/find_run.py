"""Which run a command is about: the directory that was named, or the one in runs/ that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError

from earl.cli.lib import completion
from earl.cli.lib.completion import RUNS, newest
from earl.config.run import RunConfig
from earl.errors import (
    ConfigError,
    EarlError,
    InsecureCall,
    PermissionDenied,
    ServiceUnavailable,
    Unauthenticated,
)
from earl.rpc.access import Access
from earl.rpc.token_file import Role
from earl.stack.codec import OperatorClient
from earl.stack.endpoints import endpoints_of
from earl.stack.record import is_held, read_record

# For how long the newest runs are asked whether they go on.
LOOK_S = 1.0
CALL_S = 10.0
# Of a run that may well go on: why it could not be asked.
BARRED = (InsecureCall, Unauthenticated, PermissionDenied)

T = TypeVar("T")


def with_run(
    run: Path | None,
    work: Callable[[OperatorClient], Awaitable[T]],
    roles: Sequence[Role] = (Role.OPERATOR,),
) -> T:
    """Asks the scheduler of a run, as the first of `roles` that there is a token of.

    Raises ConfigError if none goes on, ServiceUnavailable if the named one does not, one of BARRED if it
    could not be asked, and what `work` raises.
    """
    directories = [run] if run is not None else newest()

    async def answered() -> T:
        client = await (named(directories[0], roles) if run is not None else only(directories, roles))
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(answered())


async def only(directories: Sequence[Path], roles: Sequence[Role]) -> OperatorClient:
    """A client of the only running run among these.

    Raises ConfigError if none does, or several do; what barred this caller if that is not known of one.
    """
    barred: list[EarlError] = []

    async def look(directory: Path) -> OperatorClient | None:
        try:
            return await named(directory, roles, LOOK_S)
        except EarlError as error:
            if isinstance(error, BARRED) and not has_ended(directory):
                barred.append(error)
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
    if barred:
        raise barred[0]
    raise ConfigError(f"no run in ./{RUNS} goes on", "name the directory of one that does with --run RUN_DIR")


def has_ended(directory: Path) -> bool:
    """Whether it had a launcher that is gone; of services that no launcher started, False."""
    return read_record(directory) is not None and not is_held(directory)


async def named(directory: Path, roles: Sequence[Role], deadline_s: float = CALL_S) -> OperatorClient:
    """A client of a running run.

    Raises ServiceUnavailable if it does not: what answers at the address that it had may be another run.
    """
    config = config_of(directory)
    address = config.scheduler.bind
    client = OperatorClient(address, Access.of(*roles))
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


def chosen(run: Path | None, *, ended: bool = False) -> Path:
    """The directory of a run on this machine: the named one, or the only one in runs/ with a launcher.

    ended: where none goes on, the newest. Raises ConfigError.
    """
    if run is not None:
        config_of(run)
        return run
    runs = newest()
    alive = [directory for directory in runs if is_held(directory)]
    if len(alive) == 1:
        return alive[0]
    if alive:
        names = ", ".join(map(str, alive))
        raise ConfigError(f"several runs go on: {names}", "name one of them")
    if ended and runs:
        return runs[0]
    raise ConfigError(
        f"no run in ./{RUNS} goes on", "name a run's directory, or start one with: earl up RUN.toml"
    )


def metrics_of(directory: Path) -> dict[str, str]:
    """Where processes of a run that goes on serve their metrics, by name."""
    return {f"{name} metrics": f"http://{where}/metrics" for name, where in endpoints_of(directory).items()}


def addresses_of(directory: Path) -> dict[str, str]:
    """Where the services of a run's last launch listen, and where it serves metrics, by name."""
    config = config_of(directory)
    return {"scheduler": config.scheduler.bind, "gateway": config.gateway.bind, **metrics_of(directory)}


SCHEDULER = "The scheduler of a fleet, instead of a run's directory."
Scheduler = Annotated[str, typer.Option("--scheduler", metavar="HOST:PORT", help=SCHEDULER)]
Gateway = Annotated[
    str, typer.Option("--gateway", metavar="HOST:PORT", help="The fleet's gateway, with --scheduler.")
]
WHICH = "The run's directory; else the one in runs/ that goes on."
RunDir = Annotated[
    Path | None, typer.Argument(metavar="[RUN_DIR]", help=WHICH, autocompletion=completion.runs)
]
NamedRun = Annotated[
    Path,
    typer.Argument(
        metavar="RUN_DIR", help="A directory such as runs/demo-seed0.", autocompletion=completion.runs
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def config_of(directory: Path) -> RunConfig:
    """Raises ConfigError."""
    try:
        return RunConfig.model_validate_json((directory / "run.json").read_bytes())
    except OSError:
        raise ConfigError(
            f"{directory} is no run directory: it has no run.json", "give one like runs/demo-seed0"
        ) from None
    except ValidationError as error:
        what = error.errors()[0]
        raise ConfigError(
            f"{directory} is no run directory of this version: "
            f"{'.'.join(map(str, what['loc']))}: {what['msg']}",
            "use the version that made the run",
        ) from None
