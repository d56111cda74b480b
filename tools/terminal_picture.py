"""Draws what a terminal shows of commands: `python tools/terminal_picture.py OUT.svg "earl status" ...`.

The output is the commands' own, with its colours. They run in the current directory, so run them from where
`runs/` lies: a path that stands in the picture is then relative, and one of this machine is refused.
tools/pictures.py makes pictures of `earl status` and `earl explain` with it.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 130
BOUND_S = 120.0
# rich's own template asks a content network for its font.
TEMPLATE = """<svg viewBox="0 0 {terminal_width} {terminal_height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono",
  monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
  <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
<rect fill="#0d1117" width="{terminal_width}" height="{terminal_height}" rx="8"/>
<g transform="translate(9, 9)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def output_of(command: str) -> str:
    """A command's output as in a terminal. Raises SystemExit if it shows a path of this machine."""
    env = os.environ | {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(
        command, shell=True, env=env, capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    output = done.stderr + done.stdout
    for path in (Path.cwd(), Path.home(), Path(sys.prefix)):
        if str(path) in output:
            raise SystemExit(f"{command!r} shows {path}; run it where the paths that it shows are relative")
    return output


def picture(commands: list[str]) -> str:
    """The SVG of a terminal in which the commands were run one after the other."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True)
    for command in commands:
        console.print(Text.assemble(("$ ", "green"), (command, "bold")))
        console.print(Text.from_ansi(output_of(command).rstrip()))
        console.print()
    return console.export_svg(code_format=TEMPLATE, unique_id="earl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("commands", nargs="+")
    arguments = parser.parse_args()
    arguments.out.write_text(picture(arguments.commands), encoding="utf-8")
    print(f"wrote {arguments.out.name}")


if __name__ == "__main__":
    main()
