"""What the person sees while a run goes on: a live screen on a terminal, plain lines elsewhere.

Both show the same snapshots. Nothing here asks or decides anything: the launcher calls `update`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Protocol

from rich.console import Console

from earl.cli.run.live_view import LiveView
from earl.cli.run.plain_view import PlainView
from earl.stack.status import ProcessState, RunStatus


class View(Protocol):
    """A place to show snapshots; open as a context manager."""

    def __enter__(self) -> View: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def update(self, processes: Sequence[ProcessState], status: RunStatus) -> None: ...


def open_view(*, plain: bool, file: IO[str] | None = None) -> View:
    """A live screen where standard error is a terminal and `plain` does not forbid it."""
    console = Console(file=file or sys.stderr)
    return PlainView(console.file) if plain or not console.is_terminal else LiveView(console)
