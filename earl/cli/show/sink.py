"""Give a run's figures to TensorBoard or Weights & Biases, while it is running or afterwards."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Annotated

import typer

from earl.cli.lib.find_run import RunDir, pick_run
from earl.cli.lib.notices import waiting

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: earl sink tictactoe --to tensorboard")
def sink(
    to: Annotated[str, typer.Option(help="tensorboard or wandb.")],
    run: RunDir = None,
    follow: Annotated[bool, typer.Option(help="Follow the run until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was given as a JSON object.")] = False,
) -> None:
    """Give a run's figures to TensorBoard or Weights & Biases, while it is running or afterwards.

    TensorBoard's files go to tensorboard/ in the run's directory, W&B's to wandb/: offline, unless
    WANDB_MODE or WANDB_API_KEY say otherwise. A second call writes only what is new.
    """
    from earl.cli.lib.run_directory import config_of
    from earl.stack import sink as following

    run_dir = pick_run(run, ended=True)
    config = config_of(run_dir)

    async def until_interrupted() -> int:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        typer.echo(f"giving the figures of {run_dir} to {to} until Ctrl-C", err=True)
        return await following.follow(run_dir, to, config, stop)

    async def once() -> int:
        stop = asyncio.Event()
        stop.set()
        with waiting(f"giving the figures of {run_dir} to {to}"):
            return await following.follow(run_dir, to, config, stop)

    count = asyncio.run(until_interrupted() if follow else once())
    print(json.dumps({"sink": to, "points": count}) if as_json else f"{count} points for {to} in {run_dir}")
