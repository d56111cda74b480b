"""The `earl` command's entry: one line and an exit code for every error that EARL raises on purpose."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer

from earl.cli.lib.lazy import Commands
from earl.cli.lib.usage import UsageError, usage_error, wants_help
from earl.errors import EarlError, file_error
from earl.visible import visible

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Reinforcement learning for LLM agents whose context keeps growing.",
    epilog="Errors are one line on standard error; docs/cli.md lists the exit codes.",
)


def print_version(version_requested: bool) -> None:
    if version_requested:
        from importlib.metadata import version

        print(f"earl {version('earl')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Show the version.")
    ] = False,
) -> None:
    """Reinforcement learning for LLM agents whose context keeps growing."""


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    try:
        code = app(prog_name="earl", standalone_mode=False)
    except EarlError as error:
        sys.exit(report_error(error))
    except UsageError as error:
        sys.exit(report_usage(error))
    except OSError as error:
        known = file_error(error)
        if known is None:
            raise
        sys.exit(report_error(known))
    except typer.Abort:
        sys.stderr.write("earl: aborted\n")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def report_usage(error: Any) -> int:
    """Writes in one line what is wrong with a command line, or the help for an empty one; its exit code."""
    if wants_help(error):
        typer.echo(error.ctx.get_help(), err=True)
        return 2
    return report_error(usage_error(error))


def report_error(error: EarlError) -> int:
    """Writes an error as `earl: error: message; remedy`, after the notes it carries; its exit code."""
    for note in getattr(error, "__notes__", []):
        for line in note.splitlines():
            sys.stderr.write(f"  | {visible(line)}\n")
    sys.stderr.write(f"earl: error: {' '.join(str(error).split())}\n")
    return error.exit_code


if __name__ == "__main__":
    main()
