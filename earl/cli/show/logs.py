"""Show the logs of a run's processes, merged by time."""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from earl.cli.lib import completion
from earl.cli.lib.completion import newest
from earl.cli.lib.find_run import NEWEST, RUNS, AsJson, directory_of, pick_run
from earl.cli.lib.log_lines import LineFilter, LogLine, Logs
from earl.cli.lib.notices import NOTICE_S
from earl.errors import ConfigError, EarlError
from earl.stack.record import is_held
from earl.stack.run_files import LOGS

if TYPE_CHECKING:
    from earl.cli.lib.snapshot import RunMonitor

app = typer.Typer(add_completion=False)

POLL_S = 0.2
LEVELS = ("debug", "info", "warning", "error")
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
STYLES = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "bold red"}
# Colours of processes, in turn.
COLOURS = ("cyan", "magenta", "green", "blue", "bright_cyan", "bright_magenta", "bright_green", "bright_blue")


@app.command(epilog="Example: earl logs tictactoe trainer rollout-0 -f --level warning")
def logs(
    which: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [PROCESS...]",
            help=f"{NEWEST} Then names of processes; else all.",
            autocompletion=completion.runs_and_processes,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the run has ended.")] = False,
    level: Annotated[str, typer.Option(help="Least severity: debug, info, warning or error.")] = "debug",
    since: Annotated[str, typer.Option(help="Only lines of the last 90s, 10m, 2h, 1d.")] = "",
    last: Annotated[int, typer.Option("--last", "--tail", "-n", min=0, help="Only the last lines.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show the logs of a run's processes, merged by time.

    Times are local. A process that is restarted, or whose run is resumed, appends to its log. With --json
    one object per line, as it was logged.
    """
    run, processes = split(which or [])
    filters = LineFilter(level_of(level), time.time() - seconds_of(since) if since else 0.0)
    source = Logs(run / LOGS, known_processes(run, processes), filters)
    console = Console(highlight=False, soft_wrap=True)
    show = as_object if as_json else Readable(console, run)
    try:
        for line in deque(source.lines(), maxlen=last) if last else source.lines():
            show(line)
        if follow:
            asyncio.run(follow_logs(run, source, show, None if as_json else console))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        sys.stderr.close()  # `earl logs | head` is no mistake


async def follow_logs(
    run: Path, source: Logs, show: Callable[[LogLine], None], console: Console | None
) -> None:
    """Shows new lines until the run has ended. console: where the idle line is drawn, if it is a terminal."""
    async with RunProgress(run) as progress:
        idle = IdleLine(console, progress.text) if console is not None and redraws(console) else None
        try:
            while True:
                active = is_held(run)  # read before the logs are: no last line is missed
                lines = list(source.lines())
                if idle is not None:
                    idle.update(logged=bool(lines))
                for line in lines:
                    show(line)
                sys.stdout.flush()
                if not active:
                    return
                await asyncio.sleep(POLL_S)
        finally:
            if idle is not None:
                await idle.close()


def redraws(console: Console) -> bool:
    """Returns whether a line can be drawn anew there: a terminal, whatever FORCE_COLOR says of a pipe."""
    return console.file.isatty() and not console.is_dumb_terminal


def split(which: list[str]) -> tuple[Path, list[str]]:
    """The run's directory, if the first word names a run, and processes. Raises ConfigError."""
    if which and any((path / "run.json").is_file() for path in (Path(which[0]), RUNS / which[0])):
        return directory_of(which[0]), which[1:]
    if which and ("/" in which[0] or Path(which[0]).is_dir()):
        return pick_run(directory_of(which[0])), which[1:]
    run = pick_run(None, ended=True)
    if which and len(which) == 1 and which[0] not in processes_of(run):
        near = difflib.get_close_matches(
            which[0], [*(path.name for path in newest()), *processes_of(run)], n=1
        )
        raise ConfigError(
            f"there is neither a run {which[0]!r} nor a process of that name in {run}",
            f"did you mean {near[0]}?" if near else "earl ls lists the runs",
        )
    return run, which


def processes_of(run: Path) -> list[str]:
    """Names of the processes that have logged."""
    return sorted(path.stem for path in (run / LOGS).glob("*.log"))


def known_processes(run: Path, processes: list[str]) -> list[str]:
    """The processes that were named. Raises ConfigError for one that the run does not have."""
    there = processes_of(run)
    for name in processes:
        if name not in there:
            remedy = f"name one of {', '.join(there)}" if there else "none of its processes has logged yet"
            raise ConfigError(f"{run} has no process {name!r}", remedy)
    return processes


def level_of(text: str) -> int:
    if text.lower() not in LEVELS:
        raise ConfigError(f"--level {text!r} is not a level", f"give one of {', '.join(LEVELS)}")
    return logging.getLevelNamesMapping()[text.upper()]


def seconds_of(text: str) -> float:
    """A duration such as "10m" in seconds. Raises ConfigError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None:
        raise ConfigError(f"--since {text!r} is not a duration", "give, for example, 90s, 10m, 2h or 1d")
    return float(match[1]) * UNITS_S[match[2]]


class IdleLine:
    """The last line of a terminal while no new line is shown: for how long, and how far the run is.

    progress: asks the run, in a task of its own, so that an answer that is late holds no new line back.
    now_s: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        console: Console,
        progress: Callable[[], Coroutine[Any, Any, str]],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._progress, self._now_s = console, progress, now_s
        self._logged_at = self._drawn_at = now_s()
        self._is_drawn = False
        self._pending: asyncio.Task[str] | None = None
        self._answer = ""

    def update(self, *, logged: bool) -> None:
        """Draws the line anew where it is time to, and takes it away before new lines are shown."""
        now = self._now_s()
        if logged:
            self._logged_at = self._drawn_at = now
            self._answer = ""
            self._draw("")
            return
        answered = self._pending is not None and self._pending.done()
        if self._pending is not None and answered:
            self._answer, self._pending = self._pending.result(), None
        due = now - self._drawn_at >= NOTICE_S
        if due:
            self._drawn_at = now
            if self._pending is None:
                self._pending = asyncio.create_task(self._progress())
        if due or (answered and self._is_drawn):
            waits = f"no new line for {now - self._logged_at:.0f} s"
            self._draw(f"{waits}: {self._answer}" if self._answer else waits)

    async def close(self) -> None:
        """Takes the line away, and waits for no answer any more."""
        self._draw("")
        if self._pending is not None:
            self._pending.cancel()
            with suppress(asyncio.CancelledError):
                await self._pending

    def _draw(self, text: str) -> None:
        if text or self._is_drawn:
            self._console.file.write(f"\r\x1b[K{text[: self._console.width - 1]}")
            self._console.file.flush()
        self._is_drawn = bool(text)


class RunProgress:
    """Tells how far a run is, over connections that it keeps; open as a context manager."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._monitor: RunMonitor | None = None

    async def __aenter__(self) -> RunProgress:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._monitor is not None:
            await self._monitor.close()

    async def text(self) -> str:
        """The run's state and its step in a line, as its services tell now; "" where nobody can be asked.

        A run of another version and a wrong token are such cases: its logs are followed all the same.
        """
        from earl.cli.lib.snapshot import RunMonitor
        from earl.cli.show import panels

        try:
            if self._monitor is None:
                self._monitor = RunMonitor.of_run(self._run)
            snapshot = await self._monitor.snapshot()
        except EarlError:
            return ""
        return ", ".join(filter(None, (panels.headline(snapshot), panels.step_line(snapshot))))


def as_object(line: LogLine) -> None:
    print(json.dumps(line.as_object(), ensure_ascii=False))


class Readable:
    """Formats records for people: time, process, level unless it is info, message and fields."""

    def __init__(self, console: Console, run: Path) -> None:
        self._console = console
        names: Iterable[str] = processes_of(run)
        self._colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
        self._width = max(map(len, self._colours), default=0)

    def __call__(self, line: LogLine) -> None:
        written_at = datetime.fromtimestamp(line.time_s).strftime("%H:%M:%S.%f")[:-3]
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
