"""Show a run on a web page, while it runs or afterwards."""

from __future__ import annotations

import socket
import sys
import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from earl.cli.lib.find_run import RunDir, pick_run
from earl.cli.lib.run_directory import config_of
from earl.stack.run_files import DASHBOARD_LINK

app = typer.Typer(add_completion=False)

PROBE_S = 0.5


@app.command(epilog="Example: earl dashboard demo-seed0 --open")
def dashboard(
    run: RunDir = None,
    bind: Annotated[str, typer.Option(help="Serve it here, even if the run has a page of its own.")] = "",
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Show a run on a web page, while it runs or afterwards.

    Prints a link that works once. A running run has a page of its own, whose link is printed; for any
    other one the page is served until Ctrl-C, and each link that was used is followed by the next one.
    Nothing on the page changes the run.
    """
    directory = pick_run(run, ended=True)
    config = config_of(directory)
    if not bind and (link := served_link(directory)):
        show(link, open_)
        return
    from earl.dashboard.serve import serve
    from earl.rpc.main import run as serve_until_stopped

    first = True

    def on_link(link: str) -> None:
        nonlocal first
        show(link, open_ and first)
        first = False

    serve_until_stopped(
        lambda stop: serve(directory, config, bind=bind or "127.0.0.1:0", stop=stop, on_link=on_link)
    )


def show(link: str, in_browser: bool) -> None:
    print(link, flush=True)
    if in_browser and not webbrowser.open(link):
        sys.stderr.write("no browser could be opened; open the link by hand\n")


def served_link(directory: Path) -> str:
    """The link of the page that the run has itself; empty if nothing listens there."""
    try:
        link = (directory / DASHBOARD_LINK).read_text(encoding="utf-8").strip()
        address = urlsplit(link)
        socket.create_connection((address.hostname or "", address.port or 0), PROBE_S).close()
    except (OSError, ValueError):
        return ""
    return link
