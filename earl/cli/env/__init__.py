"""Environments: create, test, serve and play them, and list those of a gateway."""

from __future__ import annotations

import typer

from earl.cli.env import examination, listing, play, project, serving

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Environments: create, test, serve and play them, and list those of a gateway.",
    epilog="Example: earl env new word-guess. docs/environments.md goes from nothing to a training run.",
)
ADAPTER = "earl.env.adapters.calculator:environments"
app.command("new", epilog="Example: earl env new word-guess")(project.new)
app.command("test", epilog=f"Example: earl env test {ADAPTER} --episodes 8")(examination.test)
app.command("serve", epilog=f"Example: earl env serve {ADAPTER} --gateway 127.0.0.1:7000 --replicas 4")(
    serving.serve
)
app.command("play", epilog=f"Example: earl env play {ADAPTER} tools/calculator --seed 7")(play.play)
app.command("list", epilog="Example: earl env list --gateway 127.0.0.1:7000 --json")(listing.list_)
