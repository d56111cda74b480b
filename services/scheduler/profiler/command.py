"""Measure how fast and how large a run's stages are in each parallelism, at each length and load."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from earl.cli.lib.exit_code import INTERRUPTED
from earl.cli.lib.notices import Count, waiting
from earl.cli.run.launch import OverridableCommand, overrides_of
from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.errors import ConfigError, ModelNotFound
from earl.models.source import resolve
from earl.models.spec import load_spec
from earl.obs.limits import usable_cores
from earl.parallelism import REFERENCE, STAGES
from earl.stack.auto_dtype import gpu_bytes_here, settle
from earl.stack.placement import place
from earl.stack.predicted_sizes import with_predicted_sizes
from earl.stack.thread_counts import with_threads
from services.scheduler.profile.rows import ProfileRow, dump
from services.scheduler.profile.stages import StagePlan, plan_of
from services.scheduler.profiler.cache import Cache
from services.scheduler.profiler.facts import cache_of
from services.scheduler.profiler.measure import LONGEST_S, Measuring, Say

app = typer.Typer(add_completion=False)

CREATE_S = 600.0
# Share of the given time that is used: a last window may be slow, and processes have to end.
USED = 0.95


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """The profile of one stage: what is known, what is not known yet, and where it is kept."""

    stage: str
    rows: list[ProfileRow]
    lacking: list[str]
    cache: Path


@app.command(
    cls=OverridableCommand,
    epilog="Example: earl profile examples/tictactoe.toml --rollout.engines 4 --out table.csv",
)
def profile(
    ctx: typer.Context,
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="Run file whose stages are meant.")],
    stage: Annotated[str, typer.Option(help="rollout, reference, trainer, or all that the run has.")] = "all",
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write; without it, the profile is printed.")
    ] = None,
    contexts: Annotated[str, typer.Option(help="Lengths in tokens, separated by commas.")] = "",
    concurrency: Annotated[str, typer.Option(help="Sequences at once in the pool, likewise.")] = "",
    minutes: Annotated[float, typer.Option(help="Time for all of it.")] = 5.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what was measured before.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as one JSON object.")] = False,
) -> None:
    """Measure how fast and how large a run's stages are in each parallelism, at each length and load.

    What is measured is kept, for this model, hardware and settings, and not measured again: where the time
    was too short, the same command continues. docs/selector.md explains the figures. Any key of the
    run file: --section.key VALUE.
    """
    config = settle(load_run(run_file, overrides_of(ctx)))
    gpu_bytes = gpu_bytes_here(config)
    config = with_threads(config, len(gpu_bytes), usable_cores())
    config = with_predicted_sizes(config, place(config, len(gpu_bytes)), min(gpu_bytes, default=0))
    grid = (numbers("--contexts", contexts), numbers("--concurrency", concurrency))
    stages = stages_of(stage, config)
    if not 0 < minutes < 60 * 24:
        raise ConfigError(f"--minutes {minutes:g}", "give more than 0")
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no directory {out.parent}", "make it, or write elsewhere")
    started = time.monotonic()
    measured: list[MeasuredProfile] = []
    interrupted = False
    try:
        points = Count()
        measuring = measure(
            config,
            stages,
            *grid,
            seconds=60 * minutes,
            fresh=fresh,
            say=_say,
            measured=measured,
            points=points,
        )
        with waiting("measuring points", 60 * minutes, progress=points):
            asyncio.run(_until_stopped(measuring))
    except asyncio.CancelledError:
        interrupted = True
    rows = [row for profile in measured for row in profile.rows]
    if out is not None:
        out.write_text(dump(rows), encoding="utf-8")
        _say(f"written: {out}, {len(rows)} rows")
    lacking = [f"{profile.stage} {name}" for profile in measured for name in profile.lacking]
    if lacking:
        _say(f"not measured in {minutes:g} minutes: {'; '.join(lacking)}")
        _say("the same command continues from here")
    if as_json:
        summary = _summary(measured, rows, lacking, out, time.monotonic() - started)
        sys.stdout.write(json.dumps(summary) + "\n")
    elif out is None:
        sys.stdout.write(dump(rows))
    raise typer.Exit(INTERRUPTED if interrupted else 0)


async def measure(
    config: RunConfig,
    stages: Sequence[str],
    contexts: Sequence[int] = (),
    concurrencies: Sequence[int] = (),
    *,
    seconds: float,
    fresh: bool = False,
    say: Say,
    measured: list[MeasuredProfile],
    kept: Path | None = None,
    window_s: float = LONGEST_S,
    points: Count | None = None,
) -> None:
    """Measures the stages in turn; `measured` gets each as far as it came, also where this is cancelled.

    kept: directory of what was measured; None: below EARL's cache. window_s: of one window at most. points:
    gets the number of points that are not known yet, and of those that have become known. Raises
    ConfigError, ProcessFailed.
    """
    points = Count() if points is None else points

    def count_and_say(line: str) -> None:
        points.done += 1  # a line for every point that is known
        say(line)

    ends = time.monotonic() + seconds * USED
    with tempfile.TemporaryDirectory(prefix="earl-profile-") as temporary:
        directory = Path(temporary)
        model = await asyncio.to_thread(_model, config, directory)
        spec = load_spec(model)
        # All of what was asked is checked before anything is measured.
        plans = [plan_of(stage, config, spec, contexts, concurrencies) for stage in stages]
        caches = [cache_of(plan.stage, config, spec, kept) for plan in plans]
        points.total = sum(map(partial(unknown_points, fresh=fresh), plans, caches))
        for number, (plan, cache) in enumerate(zip(plans, caches, strict=True)):
            with cache.held(fresh=fresh):
                work = Measuring(plan, config, model, directory, cache, count_and_say, window_s)
                try:
                    await work.run((ends - time.monotonic()) / (len(plans) - number))
                finally:
                    lacking = [
                        f"{parallelism}, {point.context_tokens} tokens x {point.concurrency}"
                        for parallelism, points in work.lacking.items()
                        for point in points
                    ]
                    measured.append(MeasuredProfile(plan.stage, cache.rows(), lacking, cache.path))


def unknown_points(plan: StagePlan, cache: Cache, *, fresh: bool) -> int:
    """The number of points of the plan that are to be measured. fresh: all, whatever the cache has."""
    if fresh:
        return sum(map(len, plan.points.values()))
    return sum(len(progress.lacking()) for progress in cache.known(plan.points).values())


async def _until_stopped(work: Coroutine[None, None, None]) -> None:
    """Ctrl-C and SIGTERM cancel it: what it started ends with it."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


def stages_of(name: str, config: RunConfig) -> list[str]:
    """The stages that the option names. Raises ConfigError."""
    if name == "all":
        return [stage for stage in STAGES if stage != REFERENCE or config.trainer.uses_reference]
    if name not in STAGES:
        raise ConfigError(f"--stage {name!r} is no stage", f"give {', '.join(STAGES)} or all")
    return [name]


def numbers(option: str, text: str) -> list[int]:
    """ "512,1024" as numbers, none twice; raises ConfigError."""
    try:
        return sorted({int(part) for part in text.split(",")}) if text.strip() else []
    except ValueError:
        raise ConfigError(f"{option} {text!r} is no list of whole numbers", "write 512,1024") from None


def _model(config: RunConfig, directory: Path) -> Path:
    """The run's checkpoint; one from scratch is made, in a process of its own that may import torch."""
    if config.model.path:
        return resolve(config.model.path)
    run = directory / "run.json"
    run.write_text(config.model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-m", "earl.models", "--run", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CREATE_S, check=False)
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ModelNotFound(f"model.scratch could not be made: {last_line}", "fix [model.scratch]")
    return directory / "model"


def _summary(
    measured: Sequence[MeasuredProfile],
    rows: Sequence[ProfileRow],
    lacking: list[str],
    out: Path | None,
    seconds: float,
) -> dict[str, Any]:
    return {
        "seconds": round(seconds, 1),
        "complete": not lacking,
        "not_measured": lacking,
        "out": str(out) if out is not None else None,
        "caches": {profile.stage: str(profile.cache) for profile in measured},
        "rows": [row.as_dict() for row in rows],
    }


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
