"""Watch a run on one screen: tokens/s, queues, staleness, environments, parallelism, switches."""

from __future__ import annotations

from typing import Annotated

import typer

from earl.cli.lib.find_run import Gateway, RunDir, Scheduler
from earl.cli.lib.snapshot import monitor_of
from earl.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: earl top runs/tictactoe --every 0.5")
def top(
    run: RunDir = None,
    scheduler: Scheduler = "",
    gateway: Gateway = "",
    every_s: Annotated[
        float, typer.Option("--every", min=0.1, max=60.0, metavar="SECONDS", help="Between two refreshes.")
    ] = 1.0,
) -> None:
    """Watch a run on one screen: tokens/s, queues, staleness, environments, parallelism, switches.

    Space pauses, Tab goes to the next table, PgUp and PgDn scroll, Enter on a worker shows all its metrics,
    p pins or unpins the selected stage, q quits and the run continues. Programs read earl status --json.
    """
    monitor = monitor_of(run, scheduler, gateway)
    try:
        from earl.cli.top.screen import Top  # of the extra `stack`
    except ImportError as error:
        raise ConfigError(f"earl top cannot be shown: {error}", 'pip install "earl[stack]"') from error
    Top(monitor, every_s).run()
