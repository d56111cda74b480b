"""Options that every benchmark has, and where its result is saved by default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.record.checkout import RESULTS_FOLDER, ROOT

# An installed package has no record: its results lie where the command is typed.
RESULTS = ROOT / RESULTS_FOLDER if (ROOT / ".git").exists() else Path("bench-results")

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Results = Annotated[Path, typer.Option(help="Directory that the result is saved to.")]
Seeds = Annotated[str, typer.Option(help="Seeds, separated by commas.")]


def whole_numbers(text: str) -> list[int]:
    """Numbers of a list such as "1,8,32". Raises typer.BadParameter for anything else."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of whole numbers such as 1,8,32") from None
