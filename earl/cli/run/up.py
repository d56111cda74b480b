"""Start a run in the background; it keeps running when this terminal is closed."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from earl.cli import STARTED_AT
from earl.cli.lib.exit_code import INTERRUPTED
from earl.cli.lib.notices import NOTICE_S, notice
from earl.cli.run.detached import LaunchNews, LaunchOrder
from earl.cli.run.launch import OverridableCommand, overrides_of, settled_dtypes
from earl.cli.run.started import GIVEN_UP_S, Show, StartedRun, longest_pause_s, reason, started_run
from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.errors import ConfigError, ProcessFailed
from earl.stack.cluster.names import KUBERNETES, LOCAL
from earl.stack.ending import recorded_reason
from earl.stack.record import read_record
from earl.stack.rundir import run_path
from earl.waiting import until_first

app = typer.Typer(add_completion=False)

PLACE = "Where it runs: local, slurm, ray or kubernetes (docs/cluster.md)."
DRY_RUN = "Only print the run's objects, with --on kubernetes; no cluster is asked."
INTO = "Write them to this new directory for kustomize instead, its secrets apart."


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
    on: Annotated[str, typer.Option("--on", metavar="PLACE", help=PLACE)] = LOCAL,
    dry: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
    into: Annotated[Path | None, typer.Option("--into", metavar="DIR", help=INTO)] = None,
) -> None:
    """Start a run in the background; it keeps running when this terminal is closed.

    Starts the same processes as earl train. Returns once all of them are ready; an error ends with the
    same exit code, and nothing is left running. earl status, top and logs show it, earl stop ends it. Any
    key of the run file: --section.key VALUE.
    """
    only_shown = dry or into is not None
    given = overrides_of(ctx, name=name, seed=seed, runs_dir=runs_dir)
    config = load_run(run_file, given, elsewhere=only_shown)
    if only_shown:
        show_objects(config, on, into, resume=resume)
        return
    show = shown_on(Console(stderr=True))
    if on != LOCAL:
        from earl.cli.run.submitted import submit  # only here: it needs what asks a cluster's manager

        began = asyncio.run(submit(config, on, resume=resume, started_at=STARTED_AT, show=show))
    else:
        config, notes = settled_dtypes(config, resume=resume)
        sys.stderr.writelines(f"earl: {note}\n" for note in notes)
        began = asyncio.run(start(config, notes, resume=resume, started_at=STARTED_AT, show=show))
    if began is None:
        raise typer.Exit(INTERRUPTED)
    print(json.dumps(began.as_object()) if as_json else "\n".join(began.lines()))


def show_objects(config: RunConfig, place: str, directory: Path | None, *, resume: bool) -> None:
    """Prints or writes the objects of a run on Kubernetes. Raises ConfigError for another place."""
    if place != KUBERNETES:
        raise ConfigError(f"--dry-run makes objects of Kubernetes, and not of {place}", "add --on kubernetes")
    from earl.cli.run.pods import dry_run  # only here: it needs what asks a cluster's manager

    sys.stderr.writelines(f"{line}\n" for line in dry_run(config, directory, resume=resume))


async def start(
    config: RunConfig, notes: list[str], *, resume: bool, started_at: float, show: Show
) -> StartedRun | None:
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
    order = LaunchOrder(config=config, resume=resume, waited_s=time.monotonic() - started_at, notes=notes)
    process.stdin.write(order.model_dump_json().encode() + b"\n")
    launch = asyncio.create_task(follow_launch(process.stdout, show, longest_pause_s(config)))
    ready = False
    try:
        await until_first(launch, interrupted.wait())
        if not launch.done():
            return None
        news = launch.result()
        ready = news.kind == "ready"
        if ready:
            return started_run(config, news, process.pid)
        code = await wait_or_kill(process)
        sys.stderr.writelines(
            f"earl: {sentence}\n" for sentence in failure_sentence(run_path(config), process.pid)
        )
        raise reason(news, run_path(config), code)
    finally:
        launch.cancel()
        if not ready:
            process.stdin.close()  # it ends what it has started
            await wait_or_kill(process)


async def follow_launch(
    stream: asyncio.StreamReader, show: Show, longest_pause_s: float, notice_s: float = NOTICE_S
) -> LaunchNews:
    """The last news: ready, failed, or what came before the launcher ended without reporting.

    notice_s: after so long without any, what is known is shown again. Raises ProcessFailed if it sends
    nothing new for longest_pause_s.
    """
    last, reported_s = LaunchNews(kind="processes"), time.monotonic()
    while True:
        try:
            async with asyncio.timeout(notice_s):
                line = await stream.readline()
        except TimeoutError:
            quiet_s = time.monotonic() - reported_s
            if quiet_s >= longest_pause_s:
                waits = waited_for(last.states)
                raise ProcessFailed(
                    f"the launcher has reported nothing new for {longest_pause_s:g} s"
                    + (f", waiting for {waits}" if waits else ""),
                    "see logs/ in the run's directory",
                ) from None
            show(last.states, quiet_s, max(0.0, last.left_s - quiet_s))
            continue
        if not line:
            return last
        last, reported_s = LaunchNews.model_validate_json(line), time.monotonic()
        if last.kind in ("ready", "failed"):
            return last
        if last.states:
            show(last.states, 0.0, last.left_s)


def waited_for(states: Mapping[str, str]) -> str:
    """The processes that are not ready yet, in words."""
    return ", ".join(name for name, state in states.items() if state not in ("ready", "done"))


async def wait_or_kill(process: asyncio.subprocess.Process) -> int:
    """The exit code of a launcher that ends; it is killed if it does not, and its warden ends the rest."""
    with suppress(TimeoutError):
        async with asyncio.timeout(GIVEN_UP_S):
            return await process.wait()
    process.kill()
    return await process.wait()


def failure_sentence(directory: Path, pid: int) -> list[str]:
    """The sentence that says why a run failed, if it had begun and this process launched it last."""
    record = read_record(directory)
    failed = record is not None and record.pid == pid and record.outcome == "failed"
    return [recorded_reason(directory)] if failed else []


def shown_on(console: Console) -> Show:
    """Shows progress: on a terminal in one line, elsewhere in a line for each change of a process's state."""
    reported: dict[str, str] = {}

    def show(states: Mapping[str, str], quiet_s: float, left_s: float) -> None:
        waits = waited_for(states)
        left = f", about {math.ceil(left_s)} s left" if left_s > 0 else ""
        changed = [f"{name} {state}" for name, state in states.items() if reported.get(name) != state]
        reported.update(states)
        if not console.is_terminal:
            for text in changed:
                if not text.endswith("waiting"):
                    console.print(text, highlight=False)
            if not changed:
                text = notice(f"waiting for {waits or 'the launcher'}", quiet_s)
                console.print(f"{text}{left}", highlight=False)
            return
        ready = sum(state in ("ready", "done") for state in states.values())
        text = f"{ready}/{len(states)} ready{left}, waiting for {waits}" if waits else ""
        if text and quiet_s:
            text += f" ({quiet_s:.0f} s)"
        console.file.write(f"\r\x1b[K{text[: console.width - 1]}")
        console.file.flush()

    return show
