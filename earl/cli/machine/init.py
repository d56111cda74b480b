"""Start a project of your own: an environment, its tests and a run file, or a copy of an example."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from earl.cli.env.project import new
from earl.cli.run.demo import example
from earl.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: earl init first.toml --example tictactoe")
def init(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The project's name; with --example the run file to write.")
    ],
    copied: Annotated[
        str, typer.Option("--example", metavar="EXAMPLE", help="Copy this example's run file instead.")
    ] = "",
) -> None:
    """Start a project of your own: an environment, its tests and a run file, or a copy of an example.

    Without --example it does what `earl env new NAME` does.
    """
    if not copied:
        new(name)
        return
    file = Path(name if name.endswith(".toml") else f"{name}.toml")
    if file.exists():
        raise ConfigError(f"{file} exists already", "choose another name, or remove it")
    text = example_text(copied)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(re.sub(r'(?m)^name = ".*"$', f'name = "{file.stem}"', text, count=1), encoding="utf-8")
    print(f"{file}: a copy of {copied}. Next:\n")
    for line in (f"earl config check {file}", f"earl train {file}"):
        print(f"    {line}")


def example_text(name: str) -> str:
    """The text of an example's run file, "tictactoe" or "tictactoe.toml". Raises ConfigError."""
    directory = example("tictactoe.toml").parent
    names = sorted(file.stem for file in directory.glob("*.toml"))
    if name.removesuffix(".toml") not in names:
        raise ConfigError(f"there is no example {name!r}", f"give one of {', '.join(names)}")
    return (directory / f"{name.removesuffix('.toml')}.toml").read_text(encoding="utf-8")
