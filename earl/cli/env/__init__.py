"""Environments: begin one, prove it right, serve it, play it, see what a gateway has."""

from __future__ import annotations

import typer

from earl.cli.env import examination, listing, play, project, serving

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Environments: begin one, prove it right, serve it, play it, see what a gateway has.",
    epilog="docs/environments.md goes from nothing to a training run.",
)
app.command("new")(project.new)
app.command("test")(examination.test)
app.command("serve")(serving.serve)
app.command("play")(play.play)
app.command("list")(listing.list_)
