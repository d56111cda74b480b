"""Run one of EARL's benchmarks and write its figures to benchmarks/results/."""

from __future__ import annotations

import signal

import typer

from earl.cli.lazy import Benchmarks

app = typer.Typer(
    cls=Benchmarks, no_args_is_help=True, add_completion=False, epilog="Example: earl bench up --json"
)


@app.callback()
def root() -> None:
    """Run one of EARL's benchmarks and write its figures to benchmarks/results/."""
    # As Ctrl-C does: what a benchmark made in /tmp and /dev/shm goes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
