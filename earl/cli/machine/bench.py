"""Run one of EARL's benchmarks and write its figures to benchmarks/results/."""

from __future__ import annotations

import signal
from types import FrameType

import typer

from earl.cli.lib.lazy import Benchmarks

app = typer.Typer(
    cls=Benchmarks, no_args_is_help=True, add_completion=False, epilog="Example: earl bench up --json"
)


@app.callback()
def root() -> None:
    """Run one of EARL's benchmarks and write its figures to benchmarks/results/."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ends the benchmark as Ctrl-C does: its processes end, its files in /tmp and /dev/shm are removed.

    Later signals are ignored: the kernel and a shell both report a closed terminal, and the second report
    must not interrupt the removal.
    """
    signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt
