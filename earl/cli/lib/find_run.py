"""Finds the run that a command is about: the named, the running one in runs/, or the newest that trains."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from earl.cli.lib import completion
from earl.cli.lib.completion import RUNS, newest
from earl.cli.lib.run_services import run_json_of, services_of
from earl.errors import (
    ConfigError,
    EarlError,
    InsecureCall,
    PermissionDenied,
    ServiceUnavailable,
    Unauthenticated,
)
from earl.rpc.token_file import Role
from earl.stack.cluster.access import access_of
from earl.stack.codec import OperatorClient
from earl.stack.endpoints import endpoints_of
from earl.stack.record import is_held, read_record
from earl.stack.run_files import read_object

# Deadline of the call that tells whether one of the newest runs is running.
PROBE_S = 1.0
CALL_S = 10.0
# Errors that leave open whether a run is running: its scheduler refused this caller.
BARRED = (InsecureCall, Unauthenticated, PermissionDenied)

T = TypeVar("T")


def with_run(
    run: Path | None,
    work: Callable[[OperatorClient], Awaitable[T]],
    roles: Sequence[Role] = (Role.OPERATOR,),
) -> T:
    """Calls the scheduler of a run, with the token of the first of `roles` that has one.

    Raises ConfigError if no run is running, ServiceUnavailable if the named one is not, one of BARRED if its
    scheduler refused this caller, and what `work` raises.
    """
    directories = [directory_of(run)] if run is not None else newest()

    async def answered() -> T:
        client = await (
            open_named(directories[0], roles) if run is not None else open_only(directories, roles)
        )
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(answered())


async def open_only(directories: Sequence[Path], roles: Sequence[Role]) -> OperatorClient:
    """A client of the only running run among these.

    Raises ConfigError if none does, or several do; what barred this caller if that is not known of one.
    """
    barred: list[EarlError] = []

    async def probe(directory: Path) -> OperatorClient | None:
        try:
            return await open_named(directory, roles, PROBE_S)
        except EarlError as error:
            if isinstance(error, BARRED) and not has_ended(directory):
                barred.append(error)
            return None

    tried = await asyncio.gather(*map(probe, directories))
    alive = [(path, client) for path, client in zip(directories, tried, strict=True) if client is not None]
    if len(alive) == 1:
        return alive[0][1]
    for _, client in alive:
        await client.close()
    if alive:
        names = ", ".join(str(path) for path, _ in alive)
        raise ConfigError(f"several runs are running: {names}", "name one of them")
    if barred:
        raise barred[0]
    raise ConfigError(f"no run in ./{RUNS} is running", "name the directory of a running one")


def directory_of(run: Path | str) -> Path:
    """The directory of a run that was given by its name in runs/ or by its directory. Raises ConfigError.

    A word without "/" is the name of a run, if there is one of that name: a folder that is called the same,
    such as the project's own, is not taken for it.
    """
    if "/" not in str(run) and (RUNS / run / "run.json").is_file():
        return RUNS / run
    for directory in (Path(run), RUNS / run):
        if directory.is_dir():
            return directory
    names = [directory.name for directory in newest()]
    near = difflib.get_close_matches(str(run), names, n=1)
    remedy = f"did you mean {near[0]}?" if near else "earl ls lists the runs"
    raise ConfigError(f"there is no run {str(run)!r}, neither as a directory nor in ./{RUNS}", remedy)


def has_ended(directory: Path) -> bool:
    """Returns whether it had a launcher that is gone; of services that no launcher started, False."""
    return read_record(directory) is not None and not is_held(directory)


async def open_named(directory: Path, roles: Sequence[Role], deadline_s: float = CALL_S) -> OperatorClient:
    """A client of a running run.

    Raises ServiceUnavailable if it does not: what answers at the address that it had may be another run.
    """
    run = services_of(directory)
    client = OperatorClient(run.scheduler, access_of(directory, *roles))
    try:
        status = await client.status(deadline_s)
        if status.run != run.name:
            raise ServiceUnavailable(
                f"the run of {directory} is not running: {status.run} is at {run.scheduler} now",
                "name the directory of a running one",
            )
    except EarlError:
        await client.close()
        raise
    return client


def pick_run(run: Path | None, *, ended: bool = False) -> Path:
    """The directory of a run on this machine: the named one, or the only one in runs/ with a launcher.

    ended: where none is running, the newest that trains, or else the newest evaluation. Raises ConfigError.
    """
    if run is not None:
        directory = directory_of(run)
        run_json_of(directory)
        return directory
    runs = newest()
    alive = [directory for directory in runs if is_held(directory)]
    if len(alive) == 1:
        return alive[0]
    if alive:
        names = ", ".join(map(str, alive))
        raise ConfigError(f"several runs are running: {names}", "name one of them")
    if ended and runs:
        return next((directory for directory in runs if not is_evaluation(directory)), runs[0])
    if not runs:
        raise ConfigError(f"there is no run in ./{RUNS}", "name a run's directory, or start one: earl demo")
    raise ConfigError(
        f"no run in ./{RUNS} is running", "name a run's directory, or start one with: earl up RUN.toml"
    )


def is_evaluation(directory: Path) -> bool:
    """Returns whether a run only evaluates, as those that `earl eval` starts; False if its file is broken."""
    table = read_object(directory / "run.json")
    scheduler, warmup = table.get("scheduler"), table.get("warmup")
    if not isinstance(scheduler, dict) or not isinstance(warmup, dict):
        return False
    return scheduler.get("steps") == 0 and warmup.get("batches") == 0


def metrics_of(directory: Path) -> dict[str, str]:
    """Returns where processes of a running run serve their metrics, by name."""
    return {f"{name} metrics": f"http://{where}/metrics" for name, where in endpoints_of(directory).items()}


def addresses_of(directory: Path) -> dict[str, str]:
    """Returns where the services of a run's last launch listen, and where it serves metrics, by name."""
    run = services_of(directory)
    return {"scheduler": run.scheduler, "gateway": run.gateway, **metrics_of(directory)}


SCHEDULER = "The scheduler of a fleet, instead of a run's directory."
Scheduler = Annotated[str, typer.Option("--scheduler", metavar="HOST:PORT", help=SCHEDULER)]
Gateway = Annotated[
    str, typer.Option("--gateway", metavar="HOST:PORT", help="The fleet's gateway, with --scheduler.")
]
# The help of a run that a command shows, and of one that it stops or changes.
NEWEST = "The run's name or directory; else the running one in runs/, or the newest that trains."
RUNNING = "The run's name or directory; else the running one in runs/."
RunDir = Annotated[
    Path | None,
    typer.Argument(metavar="[RUN]", help=NEWEST, autocompletion=completion.runs),
]
RunningRun = Annotated[
    Path | None,
    typer.Argument(metavar="[RUN]", help=RUNNING, autocompletion=completion.runs),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
