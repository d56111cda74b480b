"""Learn tic-tac-toe from nothing, on this machine, in front of you."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from earl.cli import STARTED_AT
from earl.cli.run.launch import OverridableCommand, finish, overrides_of, run_to_end
from earl.config.load import Override, load_run
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.rundir import free_name

app = typer.Typer(add_completion=False)

RUN_FILE = "tictactoe.toml"


def example(name: str) -> Path:
    """An example run file: of the repository, or as installed with the package."""
    places = (
        Path(__file__).resolve().parents[3] / "examples",
        Path(sysconfig.get_path("data")) / "share" / "earl" / "examples",
    )
    for place in places:
        if (place / name).is_file():
            return place / name
    raise ConfigError(f"example {name} is neither in {places[0]} nor in {places[1]}", "reinstall EARL")


def demo_config(seed: int, overrides: Sequence[Override] = ()) -> RunConfig:
    """The demo's configuration for a seed, under a name that no earlier run has. It takes no profile."""
    config = load_run(example(RUN_FILE), [("seed", str(seed)), ("scheduler.profile_s", "0"), *overrides])
    return config.model_copy(update={"name": free_name(config, f"demo-seed{seed}")})


@app.command(cls=OverridableCommand, epilog="Example: earl demo --seed 1")
def demo(
    ctx: typer.Context,
    seed: Annotated[int, typer.Option(help="Seed of the weights, the games and the sampling.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of the live view.")] = False,
) -> None:
    """Learn tic-tac-toe from nothing, on this machine, in front of you.

    A small language model with random weights first imitates random legal moves, then learns by
    reinforcement to beat a random player, through the same services that train large models.
    """
    config = demo_config(seed, overrides_of(ctx))
    outcome = run_to_end(config, resume=False, plain=plain, started_at=STARTED_AT)
    raise typer.Exit(finish(outcome, config, as_json=as_json))
