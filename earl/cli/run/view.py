"""The view of a running run: a live screen on a terminal, plain lines elsewhere.

Both show the same status. Neither calls a service: the launcher calls `update`.
"""

from __future__ import annotations

import sys
from typing import IO

from rich.console import Console

from earl.cli.run.live_view import LiveView, RunView
from earl.cli.run.plain_view import PlainView


def open_view(*, plain: bool, hint: str = "", file: IO[str] | None = None) -> RunView:
    """A live screen where standard error is a terminal and `plain` does not forbid it.

    hint: what one can do meanwhile, the screen's second line.
    """
    console = Console(file=file or sys.stderr)
    return PlainView(console.file) if plain or not console.is_terminal else LiveView(console, hint)
