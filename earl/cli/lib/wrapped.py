"""Lines of text on a terminal: they are wrapped between words, so that no word is broken at its edge."""

from __future__ import annotations

import shutil
import sys
import textwrap


def terminal_width() -> int:
    """Characters in a line of standard output; 0 where it is no terminal, and a line is as long as it is."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def wrapped(line: str, width: int, hanging: int = 2) -> list[str]:
    """The lines that a line takes. A word that is longer than the width stays whole.

    width: in characters, 0 for no bound. hanging: the indent of the following lines, in addition to the
    line's own.

    >>> wrapped("  rollout stays with dp2", 16)
    ['  rollout stays', '    with dp2']
    """
    if not width or len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + hanging)
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def print_wrapped(text: str) -> None:
    """Prints lines, wrapped where standard output is a terminal."""
    width = terminal_width()
    print("\n".join(part for line in text.split("\n") for part in wrapped(line, width)))
