"""Write a run's HTML report again, from what its directory holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from earl.cli.report.page import write_report

app = typer.Typer(add_completion=False)


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A directory such as runs/demo.")],
) -> None:
    """Write a run's HTML report again, from what its directory holds."""
    print(write_report(run_dir))
