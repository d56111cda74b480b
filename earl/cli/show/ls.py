"""List the runs of a folder: state, progress, reward or score, when they started."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from earl.cli.lib.completion import RUNS, newest
from earl.cli.lib.snapshot import RunMonitor, RunSnapshot
from earl.cli.lib.status_table import StatusTable
from earl.errors import ConfigError, EarlError
from earl.obs.metrics import plain
from earl.stack.record import read_record

app = typer.Typer(add_completion=False)

# How long a running run's scheduler may take to answer.
ANSWER_S = 1.0
COLUMNS = ("run", "state", "progress", "reward", "score", "win rate", "started", "took")


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run of a folder. steps: those trained, of total_steps. started_s: Unix time, 0 if unknown.

    reward: a score where has_winners is False.
    """

    name: str
    directory: str
    state: str
    phase: str = ""
    steps: int = 0
    total_steps: int = 0
    reward: float | None = None
    win_rate: float | None = None
    started_s: float = 0.0
    elapsed_s: float = 0.0
    fault: str = ""
    has_winners: bool = False

    def cells(self, now_s: float) -> Iterator[str]:
        yield self.name
        yield self.fault or self.state
        yield f"{self.phase} {self.steps}/{self.total_steps}" if self.total_steps else ""
        result = f"{self.reward:+.3f}" if self.reward is not None else ""
        yield from (result, "") if self.has_winners else ("", result)
        yield f"{self.win_rate:.1%}" if self.win_rate is not None else ""
        yield f"{rough(now_s - self.started_s)} ago" if self.started_s else ""
        yield rough(self.elapsed_s) if self.elapsed_s else ""


@app.command(epilog="Example: earl ls --json | jq '.[].state'")
def ls(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder of runs.")] = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the runs of a folder: state, progress, reward or score, when they started.

    The run that was started last comes first.
    """
    if folder != RUNS and not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", "name one, or leave it out for ./runs")
    runs = asyncio.run(list_runs(folder))
    if as_json:
        print(json.dumps(plain([asdict(run) for run in runs])))
        return
    if not runs:
        print(f"{folder} has no runs; start one with: earl demo")
        return
    console = Console(highlight=False)
    console.print(table_of(runs, time.time()).fitted(console.width).drawn(box=None, pad_edge=False))


def table_of(runs: Sequence[ListedRun], now_s: float) -> StatusTable:
    """The list. Rewards of games and scores of other tasks have a column each, if there is one to show."""
    rows = tuple(tuple(run.cells(now_s)) for run in runs)
    table = StatusTable("runs", COLUMNS, rows, least=("took", "started", "win rate", "progress"))
    unused = {name for name in ("reward", "score") if not any(row[COLUMNS.index(name)] for row in rows)}
    return table.without(unused if len(unused) == 1 else {"reward"} if unused else ())


async def list_runs(folder: Path) -> list[ListedRun]:
    """The runs of a folder, those first that were launched last."""
    return list(await asyncio.gather(*map(listed_run, newest(folder))))


async def listed_run(directory: Path) -> ListedRun:
    """One run: from its scheduler if it is running, else from its files."""
    try:
        monitor = RunMonitor.of_run(directory)
        try:
            snapshot = await monitor.snapshot(ANSWER_S)
        finally:
            await monitor.close()
    except EarlError as error:  # a directory of another version, or one that this user cannot read
        return ListedRun(directory.name, str(directory), "unknown", fault=error.message)
    return run_line(snapshot)


def run_line(snapshot: RunSnapshot) -> ListedRun:
    """The line of a snapshot."""
    status, record = snapshot.status, read_record(snapshot.directory)
    metrics: dict[str, Any] = dict(status.metrics)
    return ListedRun(
        name=status.run or snapshot.directory.name,
        directory=str(snapshot.directory),
        state=snapshot.state.value,
        phase=status.phase,
        steps=status.step,
        total_steps=status.steps,
        reward=metrics.get("reward_mean"),
        win_rate=metrics.get("win_rate") if status.has_winners else None,
        started_s=record.started_ns / 1e9 if record is not None else 0.0,
        elapsed_s=snapshot.elapsed_s,
        has_winners=status.has_winners,
    )


def rough(seconds: float) -> str:
    """A duration in its largest unit: "40 s", "12 min", "5 h", "3 d"."""
    for size_s, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"
