"""Show a run: stages, processes, queues, ledger, staleness, environments, switches and their reasons."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from earl.cli.lib.exit_code import INTERRUPTED
from earl.cli.lib.find_run import AsJson, Gateway, RunDir, Scheduler
from earl.cli.lib.snapshot import NOWHERE, RunMonitor, RunSnapshot, RunState, monitor_of
from earl.cli.lib.status_text import drafts_line
from earl.cli.show import panels

app = typer.Typer(add_completion=False)

EVERY_S = 2.0
# Exit codes by state; those of errors are others (docs/cli.md).
EXIT_CODES = {
    RunState.STARTING: 0,
    RunState.RUNNING: 0,
    RunState.COMPLETE: 20,
    RunState.STOPPED: 21,
    RunState.FAILED: 22,
    RunState.LOST: 23,
}


@app.command(epilog="Example: earl status runs/tictactoe --json | jq .status.ledger")
def status(
    run: RunDir = None,
    scheduler: Scheduler = "",
    gateway: Gateway = "",
    as_json: AsJson = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Repeat every 2 seconds until the run has ended.")
    ] = False,
) -> None:
    """Show a run: stages, processes, queues, ledger, staleness, environments, switches and their reasons.

    A run that has ended is shown from its directory, a fleet from its services. Without RUN: the running
    one in runs/, else the newest that trains. Ends with code 0 while the run is running, 20 if it is
    complete, 21 if it was stopped before, 22 if it failed, 23 if its launcher ended without recording an
    outcome.
    """
    monitor = monitor_of(run, scheduler, gateway)
    console = Console(highlight=False)

    def show(snapshot: RunSnapshot) -> None:
        if as_json:
            print(json.dumps(snapshot.as_object()), flush=True)
        else:
            console.print(rendered(snapshot))

    try:
        if watch and console.is_terminal and not as_json:
            from rich.live import Live  # only here: it takes as long to import as the tables to draw

            with Live(console=console, auto_refresh=False) as live:
                state = asyncio.run(
                    follow(monitor, lambda snapshot: live.update(rendered(snapshot), refresh=True), watch)
                )
        else:
            state = asyncio.run(follow(monitor, show, watch))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(EXIT_CODES[state])


async def follow(monitor: RunMonitor, show: Callable[[RunSnapshot], None], watch: bool) -> RunState:
    """Shows the run once, or until it has ended if `watch`; its last state."""
    try:
        while True:
            snapshot = await monitor.snapshot()
            show(snapshot)
            if not watch or not snapshot.state.is_active:
                return snapshot.state
            await asyncio.sleep(EVERY_S)
    finally:
        await monitor.close()


class rendered:
    """All tables of a snapshot, as wide as the console that shows them."""

    def __init__(self, snapshot: RunSnapshot) -> None:
        self._snapshot = snapshot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from parts(self._snapshot, options.max_width)


def parts(snapshot: RunSnapshot, cells: int) -> Iterator[RenderableType]:
    yield Text(panels.headline(snapshot), style=panels.STYLES[snapshot.state])
    if step := panels.step_line(snapshot):
        yield Text(step)
    for line in panels.seat_lines(snapshot.status):
        yield Text(line)
    if drafts := drafts_line(snapshot.status):
        yield Text(drafts)
    if snapshot.directory != NOWHERE:
        yield Text(str(snapshot.directory), style="grey50")
    reason, style = panels.ending_line(snapshot)
    if reason:
        yield Text(reason, style=style)
    for problem in panels.problems(snapshot):
        yield Text(problem, style="red")
    for whole in panels.tables(snapshot):
        table = whole.fitted(cells)
        yield table.drawn(
            title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False,
            show_header=any(name.strip() for name in table.columns),
        )  # fmt: skip
