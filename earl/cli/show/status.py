"""Show a run: stages, processes, queues, ledger, staleness, environments, switches and their reasons."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from earl.cli.lib.find_run import AsJson, Gateway, RunDir, Scheduler
from earl.cli.lib.snapshot import NOWHERE, Look, Looker, State, looker_of
from earl.cli.run.launch import INTERRUPTED
from earl.cli.show import panels

app = typer.Typer(add_completion=False)

EVERY_S = 2.0
# What a program is told; codes of errors are others (docs/cli.md).
EXIT_CODES = {
    State.STARTING: 0,
    State.RUNNING: 0,
    State.COMPLETE: 20,
    State.STOPPED: 21,
    State.FAILED: 22,
    State.LOST: 23,
}
STYLES = {
    State.STARTING: "yellow",
    State.RUNNING: "green",
    State.COMPLETE: "bold green",
    State.STOPPED: "yellow",
    State.FAILED: "bold red",
    State.LOST: "bold red",
}


@app.command(epilog="Example: earl status runs/tictactoe --json | jq .status.ledger")
def status(
    run: RunDir = None,
    scheduler: Scheduler = "",
    gateway: Gateway = "",
    as_json: AsJson = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Again every 2 seconds until the run has ended.")
    ] = False,
) -> None:
    """Show a run: stages, processes, queues, ledger, staleness, environments, switches and their reasons.

    Of a run that has ended, what its directory holds; of a fleet, what its services say. Without RUN_DIR
    the one in runs/ that goes on, else the newest. Ends with code 0 while the run goes on, 20 if it is
    complete, 21 if it was stopped before, 22 if it failed, 23 if its launcher is gone without a word.
    """
    looker = looker_of(run, scheduler, gateway)
    console = Console(highlight=False)

    def show(look: Look) -> None:
        if as_json:
            print(json.dumps(look.as_object()), flush=True)
        else:
            console.print(rendered(look))

    try:
        if watch and console.is_terminal and not as_json:
            with Live(console=console, auto_refresh=False) as live:
                state = asyncio.run(
                    follow(looker, lambda look: live.update(rendered(look), refresh=True), watch)
                )
        else:
            state = asyncio.run(follow(looker, show, watch))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(EXIT_CODES[state])


async def follow(looker: Looker, show: Callable[[Look], None], watch: bool) -> State:
    """Shows the run, again and again if `watch`; the state that it was seen in last."""
    try:
        while True:
            look = await looker.look()
            show(look)
            if not watch or not look.state.goes_on:
                return look.state
            await asyncio.sleep(EVERY_S)
    finally:
        await looker.close()


def rendered(look: Look) -> RenderableType:
    """All of it, a table each."""
    return Group(*parts(look))


def parts(look: Look) -> Iterator[RenderableType]:
    yield Text(panels.headline(look), style=STYLES[look.state])
    if look.directory != NOWHERE:
        yield Text(str(look.directory), style="grey50")
    for remark in panels.remarks(look):
        yield Text(remark, style="red")
    for table in panels.tables(look):
        shown = Table(
            title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for column in table.columns:
            shown.add_column(column, justify="right" if column in table.numbers else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*map(Text, row))
        yield shown
