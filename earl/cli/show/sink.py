"""Give a run's figures to TensorBoard or Weights & Biases, while it goes on or afterwards."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: earl sink runs/tictactoe --to tensorboard")
def sink(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A directory such as runs/demo-seed0.")],
    to: Annotated[str, typer.Option(help="tensorboard or wandb.")],
    follow: Annotated[bool, typer.Option(help="Go on until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was given as a JSON object.")] = False,
) -> None:
    """Give a run's figures to TensorBoard or Weights & Biases, while it goes on or afterwards.

    TensorBoard's files go to RUN_DIR/tensorboard, W&B's to RUN_DIR/wandb: offline, unless WANDB_MODE or
    WANDB_API_KEY say otherwise. A second call gives what is new since the first.
    """
    from earl.cli.lib.find_run import config_of
    from earl.stack import sink as following

    config = config_of(run_dir)

    async def work() -> int:
        stop = asyncio.Event()
        if follow:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
        else:
            stop.set()
        return await following.follow(run_dir, to, config, stop)

    count = asyncio.run(work())
    print(json.dumps({"sink": to, "points": count}) if as_json else f"{count} points for {to} in {run_dir}")
