"""Train an agent from a run file, with every service on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from earl.cli import STARTED_AT
from earl.cli.run.launch import OverridableCommand, finish, overrides_of, run_to_end
from earl.config.load import load_run

app = typer.Typer(add_completion=False)


@app.command(
    cls=OverridableCommand,
    epilog="Example: earl train examples/tictactoe.toml --name second --trainer.lr 1e-4",
)
def train(
    ctx: typer.Context,
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="Run file; examples/ has some.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run of this name.")] = False,
    name: Annotated[str, typer.Option(help="Name of the run, instead of the file's.")] = "",
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the file's.")] = None,
    runs_dir: Annotated[str, typer.Option(help="Directory of runs, instead of the file's.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of the live view.")] = False,
) -> None:
    """Train an agent from a run file, with every service on this machine.

    The run's directory, runs/NAME, gets logs, metrics, checkpoints and a report. Ctrl-C stops
    everything cleanly, saves, and prints how to resume; a second one does not wait. Any key of the run
    file: --section.key VALUE.
    """
    config = load_run(run_file, overrides_of(ctx, name=name, seed=seed, runs_dir=runs_dir))
    outcome = run_to_end(config, resume=resume, plain=plain, started_at=STARTED_AT)
    raise typer.Exit(finish(outcome, config, as_json=as_json))
