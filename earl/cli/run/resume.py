"""Resume a run from its last checkpoint, in the background or here."""

from __future__ import annotations

from typing import Annotated

import typer

from earl.cli.lib.find_run import RunDir, pick_run
from earl.cli.run.launch import OverridableCommand
from earl.cli.run.train import train
from earl.cli.run.up import up
from earl.errors import ConfigError
from earl.stack.cluster.folder import ClusterFolder
from earl.stack.cluster.names import LOCAL
from earl.stack.record import is_held

app = typer.Typer(add_completion=False)

PLACE_AGAIN = "Where it runs: local, slurm, ray or kubernetes; else where it ran last."


@app.command(cls=OverridableCommand, epilog="Example: earl resume tictactoe --scheduler.steps 200")
def resume(
    ctx: typer.Context,
    run: RunDir = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Show the live view here, as earl train does.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    on: Annotated[str, typer.Option("--on", metavar="PLACE", help=PLACE_AGAIN)] = "",
) -> None:
    """Resume a run from its last checkpoint, in the background or here.

    Without a name: the newest run that trains. The run file is the run's own run.toml; any key but the
    model, the environment's name and the seed may change: --section.key VALUE.
    """
    directory = pick_run(run, ended=True)
    if is_held(directory):
        raise ConfigError(f"{directory} is running", f"show it with: earl top {directory}")
    run_file = directory / "run.toml"
    if foreground and on not in ("", LOCAL):
        raise ConfigError(f"--foreground and --on {on} are both given", "leave one out")
    if foreground:
        train(ctx, run_file, resume=True, as_json=as_json)
    else:
        before = ClusterFolder(directory).job
        up(ctx, run_file, resume=True, as_json=as_json, on=on or (before.manager if before else LOCAL))
