"""Arguments that several `earl env` commands take."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from earl.errors import ConfigError

GATEWAY = "The gateway's host:port; else EARL_GATEWAY."
Gateway = Annotated[str, typer.Option("--gateway", metavar="HOST:PORT", help=GATEWAY)]
Task = Annotated[str, typer.Option("--task", metavar="JSON", help="Task of every reset, a JSON object.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def task_of(text: str) -> dict[str, Any]:
    """A task from the command line. Raises ConfigError."""
    try:
        task = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(
            f"--task {text!r} is not JSON: {error}", "give an object, like '{\"level\": 2}'"
        ) from None
    if not isinstance(task, dict):
        raise ConfigError(f"--task {text!r} is not a JSON object", "give one, like '{\"level\": 2}'")
    return task


def gateway_of(given: str) -> str:
    """The gateway's address. Raises ConfigError if none is given."""
    address = given or os.environ.get("EARL_GATEWAY", "")
    if not address:
        raise ConfigError("no gateway is given", "give --gateway HOST:PORT or set EARL_GATEWAY")
    return address
