"""The help of a group of commands as text, as wide as the terminal. Pure but for what the terminal is.

Looks as typer's help of a single command does, which rich draws; without rich it is there in half the time.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

BOLD, CYAN, DIM, PLAIN = "\x1b[1m", "\x1b[1;36m", "\x1b[2m", "\x1b[0m"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# A description gets at least so many characters.
LEAST_CELLS = 16


@dataclass(frozen=True, slots=True)
class Panel:
    """A box with a title. rows: (name, description)."""

    title: str
    rows: Sequence[tuple[str, str]]


def help_page(usage: str, about: str, panels: Iterable[Panel], epilog: str) -> str:
    """The whole page, with colours unless NO_COLOR is set; typer leaves them out where there is no terminal.

    panels: the options, and then the commands, whose descriptions begin in the same column in all panels.
    """
    cells = shutil.get_terminal_size().columns
    shown = [panel for panel in panels if panel.rows]
    commands = max((len(name) for panel in shown[1:] for name, _ in panel.rows), default=0)
    parts = ["", *(f" {BOLD}{line}{PLAIN}" for line in _wrapped(usage, cells - 2)), ""]
    parts += [f" {line}" for line in _wrapped(about, cells - 2)] + [""]
    for panel in shown:
        names = commands if panel is not shown[0] else max(len(name) for name, _ in panel.rows)
        parts += _box(panel, names, cells)
    parts += ["", *(f" {line}" for line in _wrapped(epilog, cells - 2)), ""]
    page = "\n".join(parts) + "\n"
    return COLOURS.sub("", page) if os.environ.get("NO_COLOR") else page


def _box(panel: Panel, names: int, cells: int) -> Iterator[str]:
    width = max(LEAST_CELLS, cells - names - 6)
    inner = names + width + 4
    yield f"{DIM}╭─ {panel.title} {'─' * (inner - len(panel.title) - 3)}╮{PLAIN}"
    for name, description in panel.rows:
        for i, line in enumerate(_wrapped(description, width) or [""]):
            first = name if i == 0 else ""
            yield f"{DIM}│{PLAIN} {CYAN}{first:<{names}}{PLAIN}  {line:<{width}} {DIM}│{PLAIN}"
    yield f"{DIM}╰{'─' * inner}╯{PLAIN}"


def _wrapped(text: str, cells: int) -> list[str]:
    return textwrap.wrap(text, max(LEAST_CELLS, cells), break_on_hyphens=False)
