"""Show what the processes of a run said, merged by time."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from earl.cli.lib import completion
from earl.cli.lib.find_run import AsJson, chosen
from earl.cli.lib.log_lines import Line, Logs, Wanted
from earl.errors import ConfigError
from earl.stack.record import is_held
from earl.stack.rundir import LOGS

app = typer.Typer(add_completion=False)

POLL_S = 0.2
LEVELS = ("debug", "info", "warning", "error")
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
STYLES = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "bold red"}
# Of processes, by turns.
COLOURS = ("cyan", "magenta", "green", "blue", "bright_cyan", "bright_magenta", "bright_green", "bright_blue")


@app.command(epilog="Example: earl logs runs/tictactoe trainer rollout-0 -f --level warning")
def logs(
    which: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN_DIR] [PROCESS...]",
            help="The run's directory, else the one in runs/ that goes on or the newest; else all processes.",
            autocompletion=completion.runs_and_processes,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    level: Annotated[str, typer.Option(help="debug, info, warning or error: that and worse.")] = "debug",
    since: Annotated[str, typer.Option(help="Not what is older: 90s, 10m, 2h, 1d.")] = "",
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="The last lines alone.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show what the processes of a run said, merged by time.

    Times are local. A process that is started again goes on in its log, and so does the run when it is
    resumed. With --json one object a line, as it was logged.
    """
    run, processes = split(which or [])
    filters = Wanted(level_of(level), time.time() - seconds_of(since) if since else 0.0)
    source = Logs(run / LOGS, known(run, processes), filters)
    show = as_object if as_json else Readable(Console(highlight=False, soft_wrap=True), run)
    try:
        for line in deque(source.lines(), maxlen=last) if last else source.lines():
            show(line)
        while follow:
            going_on = is_held(run)  # looked at before the logs are: its last words are not missed
            for line in source.lines():
                show(line)
            sys.stdout.flush()
            if not going_on:
                return
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        sys.stderr.close()  # `earl logs | head` is no mistake


def split(which: list[str]) -> tuple[Path, list[str]]:
    """The run's directory, if the first word is one, and processes. Raises ConfigError."""
    if which and (Path(which[0]) / "run.json").is_file():
        return Path(which[0]), which[1:]
    if which and ("/" in which[0] or Path(which[0]).is_dir()):
        return chosen(Path(which[0])), which[1:]
    return chosen(None, ended=True), which


def known(run: Path, processes: list[str]) -> list[str]:
    """Raises ConfigError for a process that the run does not have."""
    there = sorted(path.stem for path in (run / LOGS).glob("*.log"))
    for name in processes:
        if name not in there:
            raise ConfigError(f"{run} has no process {name!r}", f"name one of {', '.join(there) or 'none'}")
    return processes


def level_of(text: str) -> int:
    if text.lower() not in LEVELS:
        raise ConfigError(f"--level {text!r} is no level", f"give one of {', '.join(LEVELS)}")
    return logging.getLevelNamesMapping()[text.upper()]


def seconds_of(text: str) -> float:
    """ "10m" as seconds. Raises ConfigError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None:
        raise ConfigError(f"--since {text!r} is no time", "give, for example, 90s, 10m, 2h or 1d")
    return float(match[1]) * UNITS_S[match[2]]


def as_object(line: Line) -> None:
    print(json.dumps(line.as_object(), ensure_ascii=False))


class Readable:
    """A person's lines: time, process, level where it is not info, message and fields."""

    def __init__(self, console: Console, run: Path) -> None:
        self._console = console
        names: Iterable[str] = sorted(path.stem for path in (run / LOGS).glob("*.log"))
        self._colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
        self._width = max(map(len, self._colours), default=0)

    def __call__(self, line: Line) -> None:
        written_at = datetime.fromtimestamp(line.at).strftime("%H:%M:%S.%f")[:-3]
        style = STYLES.get(line.level, "")
        mark = f"{logging.getLevelName(line.level).lower()}: " if style else ""
        for number, words in enumerate(line.words()):
            text = Text.assemble(
                (written_at, "grey50"),
                " ",
                (f"{line.process:{self._width}}", self._colours.get(line.process, "")),
                " ",
                (f"{mark if not number else ''}{words}", style),
            )
            self._console.print(text)
