"""Remove runs that have ended, with everything in their directories."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from earl.cli.lib import completion
from earl.cli.lib.find_run import AsJson, directory_of
from earl.cli.lib.run_directory import config_of
from earl.errors import ConfigError
from earl.stack import leftovers
from earl.stack.record import is_held, read_record

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: earl rm first second")
def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Names or directories.", autocompletion=completion.runs),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove runs that have ended, with everything in their directories.

    All are checked before the first is removed. A directory that no launch of EARL made, one that is running,
    and one of which processes are left are refused.
    """
    directories = [removable(directory_of(run)) for run in runs]
    names = ", ".join(map(str, directories))
    if not yes and not typer.confirm(f"remove {names}?"):
        raise typer.Exit(1)
    for directory in directories:
        shutil.rmtree(directory)
        if not as_json:
            print(f"removed {directory}")
    if as_json:
        print(json.dumps({"removed": [str(directory) for directory in directories]}))


def removable(directory: Path) -> Path:
    """The directory, if it is a run's that has ended and nothing of it is left. Raises ConfigError."""
    config_of(directory)
    record = read_record(directory)
    if directory.is_symlink():
        raise ConfigError(f"{directory} is a link", f"remove {directory.resolve()} by its own name")
    if is_held(directory):
        raise ConfigError(f"{directory} is running", f"end it first: earl stop {directory}")
    if record is None:
        raise ConfigError(
            f"{directory} was not launched by `earl` on this machine", "remove it yourself if nothing uses it"
        )
    if left := leftovers.find(directory, record):
        raise ConfigError(f"{left} of {directory} is left", f"clean it up first: earl stop {directory}")
    return directory
