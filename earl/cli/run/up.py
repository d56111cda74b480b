"""Start a run in the background; it goes on when this terminal is closed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from earl.cli import STARTED_AT
from earl.cli.lib.find_run import addresses_of
from earl.cli.run.detached import News, Order
from earl.cli.run.launch import INTERRUPTED, OverridableCommand, overrides_of, settled_dtypes
from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.errors import EarlError, ProcessFailed
from earl.rpc.errors import catalogue
from earl.stack.process import readable
from earl.stack.record import read_record
from earl.stack.rundir import DASHBOARD_LINK, LOGS, run_path

app = typer.Typer(add_completion=False)

# A launch that was given up ends what it had started, hurriedly.
GIVEN_UP_S = 20.0
# Beyond what bounds every step of a launch: imports, and the end of what is left.
SLACK_S = 60.0
TAIL_LINES = 12


@app.command(
    cls=OverridableCommand,
    epilog="Example: earl up examples/tictactoe.toml --name first --trainer.lr 1e-4",
)
def up(
    ctx: typer.Context,
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="Run file; examples/ has some.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run of this name.")] = False,
    name: Annotated[str, typer.Option(help="Name of the run, instead of the file's.")] = "",
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the file's.")] = None,
    runs_dir: Annotated[str, typer.Option(help="Directory of runs, instead of the file's.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Start a run in the background; it goes on when this terminal is closed.

    The same processes as earl train starts. Returns once all of them are ready; a mistake ends with its
    exit code, as there, and nothing is left running. earl status, top and logs look at it, earl down ends
    it. Any key of the run file: --section.key VALUE.
    """
    config = load_run(run_file, overrides_of(ctx, name=name, seed=seed, runs_dir=runs_dir))
    config, notes = settled_dtypes(config, resume=resume)
    sys.stderr.writelines(f"earl: {note}\n" for note in notes)
    show = shown_on(Console(stderr=True))
    began = asyncio.run(start(config, notes, resume=resume, started_at=STARTED_AT, show=show))
    if began is None:
        raise typer.Exit(INTERRUPTED)
    print(json.dumps(began.as_object()) if as_json else "\n".join(began.lines()))


@dataclass(slots=True)
class Begun:
    """A run that is up. seconds: from the command's start until every process was ready."""

    directory: Path
    pid: int
    seconds: float
    processes: list[str]
    addresses: Mapping[str, str] = field(default_factory=dict)

    def as_object(self) -> dict[str, Any]:
        return {
            "run": self.directory.name,
            "directory": str(self.directory),
            "pid": self.pid,
            "ready_s": round(self.seconds, 3),
            "processes": self.processes,
            "addresses": dict(self.addresses),
        }

    def lines(self) -> list[str]:
        where = self.directory
        width = max((len(name) for name in self.addresses), default=0)
        return [
            f"{where.name} is up after {self.seconds:.1f} s: {where}, {len(self.processes)} processes",
            *(f"  {name:{width}}  {address}" for name, address in self.addresses.items()),
            f"look: earl status {where} · earl top {where} · earl logs {where} -f · earl dashboard {where}",
            f"end:  earl down {where}",
        ]


Show = Callable[[Mapping[str, str]], None]


async def start(
    config: RunConfig, notes: list[str], *, resume: bool, started_at: float, show: Show
) -> Begun | None:
    """Starts a detached launcher and waits until its processes are ready; None if it was interrupted.

    notes: for the launcher's log. started_at: time.monotonic() at the command's start. Raises what the
    launch failed with.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "earl.cli.run.detached",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupted.set)
    order = Order(config=config, resume=resume, waited_s=time.monotonic() - started_at, notes=notes)
    process.stdin.write(order.model_dump_json().encode() + b"\n")
    heard = asyncio.create_task(hear(process.stdout, show, silence_s(config)))
    stopped = asyncio.create_task(interrupted.wait())
    ready = False
    try:
        await asyncio.wait([heard, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not heard.done():
            return None
        news = heard.result()
        ready = news.kind == "ready"
        if ready:
            return begun(config, news, process.pid)
        raise reason(news, run_path(config), await ended(process))
    finally:
        heard.cancel()
        stopped.cancel()
        if not ready:
            process.stdin.close()  # it ends what it has started
            await ended(process)


def silence_s(config: RunConfig) -> float:
    """For how long a launcher may say nothing: a process is ready within start_s, stopped within stop_s."""
    return config.stack.start_s + 2 * config.stack.stop_s + SLACK_S


async def hear(stream: asyncio.StreamReader, show: Show, silence_s: float) -> News:
    """The last news: ready, failed, or what came before the launcher ended without a word.

    Raises ProcessFailed if it says nothing new for silence_s.
    """
    last = News(kind="processes")
    while True:
        try:
            async with asyncio.timeout(silence_s):
                line = await stream.readline()
        except TimeoutError:
            waits = [name for name, state in last.states.items() if state not in ("ready", "done")]
            raise ProcessFailed(
                f"the launcher has said nothing new for {silence_s:g} s"
                + (f", waiting for {', '.join(waits)}" if waits else ""),
                "see logs/ in the run's directory",
            ) from None
        if not line:
            return last
        last = News.model_validate_json(line)
        if last.kind in ("ready", "failed"):
            return last
        if last.states:
            show(last.states)


async def ended(process: asyncio.subprocess.Process) -> int:
    """The exit code of a launcher that ends; it is killed if it does not, and its warden ends the rest."""
    with suppress(TimeoutError):
        async with asyncio.timeout(GIVEN_UP_S):
            return await process.wait()
    process.kill()
    return await process.wait()


def begun(config: RunConfig, news: News, pid: int) -> Begun:
    directory = run_path(config)
    record = read_record(directory)
    names = [process.name for process in record.processes] if record is not None else []
    addresses = addresses_of(directory)
    with suppress(OSError):
        addresses["dashboard"] = (directory / DASHBOARD_LINK).read_text(encoding="utf-8").strip()
    return Begun(directory, pid, news.seconds, names, addresses)


def reason(news: News, directory: Path, code: int) -> EarlError:
    """Why a launch failed, as the error that it was there."""
    if news.kind == "failed":
        error = catalogue().get(news.error, ProcessFailed)(news.message, news.remedy)
        for note in news.notes:
            error.add_note(note)
        return error
    log = directory / LOGS / "earl.log"
    last = tail(log)
    error = ProcessFailed(
        f"the launcher ended with exit code {code} before the run was ready"
        + (f": {last[-1].strip()}" if last else ""),
        f"see {log}" if last else "see what it said above",
    )
    if last:
        error.add_note("\n".join(last))
    return error


def tail(log: Path) -> list[str]:
    """The last lines of a log as a person would write them."""
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        return [shown for line in lines for shown in readable(line)][-TAIL_LINES:]
    return []


def shown_on(console: Console) -> Show:
    """On a terminal one line that is written over; elsewhere a line when a process's state changes."""
    reported: dict[str, str] = {}

    def show(states: Mapping[str, str]) -> None:
        changed = [f"{name} {state}" for name, state in states.items() if reported.get(name) != state]
        reported.update(states)
        if not console.is_terminal:
            for text in changed:
                if not text.endswith("waiting"):
                    console.print(text, highlight=False)
            return
        waits = [name for name, state in states.items() if state not in ("ready", "done")]
        text = (
            f"{len(states) - len(waits)}/{len(states)} ready, waiting for {', '.join(waits)}" if waits else ""
        )
        console.file.write(f"\r\x1b[K{text[: console.width - 1]}")
        console.file.flush()

    return show
