"""The `earl` command's entry: one line and an exit code for every error that EARL raises on purpose."""

from __future__ import annotations

import sys

import typer

from earl.cli.lib.lazy import Commands
from earl.errors import EarlError
from earl.visible import visible

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Reinforcement learning for LLM agents whose context keeps growing.",
    epilog="Errors are one line on standard error; docs/cli.md lists the exit codes.",
)


@app.callback()
def root() -> None:
    """Reinforcement learning for LLM agents whose context keeps growing."""


def main() -> None:
    try:
        app(prog_name="earl")
    except EarlError as error:
        sys.exit(report_error(error))


def report_error(error: EarlError) -> int:
    """Writes an error as `earl: error: message; remedy`, after the notes it carries; its exit code."""
    for note in getattr(error, "__notes__", []):
        for line in note.splitlines():
            sys.stderr.write(f"  | {visible(line)}\n")
    sys.stderr.write(f"earl: error: {' '.join(str(error).split())}\n")
    return error.exit_code


if __name__ == "__main__":
    main()
