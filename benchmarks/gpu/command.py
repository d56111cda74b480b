"""`earl bench gpu`: what EARL does on a machine with CUDA cards, in one command of eight minutes."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from benchmarks.gpu.check import FAILED, GpuCheck, Sizes
from benchmarks.gpu.execution import CheckRunner
from benchmarks.gpu.table import CHECKS
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import phase
from benchmarks.record.results import publish
from earl.errors import ConfigError

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/rollout",
    "services/trainer",
    "services/scheduler/memory",
    "earl/dispatch",
    "earl/models",
)

MEASURES = (
    "One row for each check: ok, failed, or skipped with the reason; seconds with its start; what "
    "it measured, and what its rule allows of that. A check is a process of its own with a deadline. failed: "
    "how many required checks failed. Checks that are timed had the machine to themselves; sizes: of models "
    "and batches, `card`, or small ones for a processor."
)
# Cores of a machine that runs several untimed checks at once: for each of them.
CORES_EACH = 4
MOST_AT_ONCE = 4


@app.command(cls=RecordedCommand)
def gpu(
    only: Annotated[
        str, typer.Option(help="Names of checks, or prefixes of them, separated by commas; by default all.")
    ] = "",
    gpus: Annotated[
        int,
        typer.Option(min=0, help="Cards to use; 2 adds checks of several. By default 1, on the processor 2."),
    ] = 0,
    device: Annotated[str, typer.Option(help="cuda, or cpu: the same checks with small sizes.")] = "cuda",
    sizes: Annotated[
        str, typer.Option(help="card, processor or least; by default those of the device.")
    ] = "",
    minutes: Annotated[float, typer.Option(help="Time for all of it; checks that are left fail.")] = 8.0,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Check on a machine with CUDA cards what EARL promises there, and measure how fast it is.

    Exit code 1 if a required check failed. The checks are listed in docs/benchmarks.md.
    """
    if device not in ("cuda", "cpu"):
        raise typer.BadParameter(f"--device {device} is neither cuda nor cpu")
    if sizes not in ("", "card", "processor", "least"):
        raise typer.BadParameter(f"--sizes {sizes} is none of card, processor and least")
    gpus = gpus or (1 if device == "cuda" else 2)
    if device == "cuda":
        require_cards(gpus)
    chosen = chosen_checks(only, CHECKS)
    size = cast(Sizes, sizes or ("card" if device == "cuda" else "processor"))
    ended: list[dict[str, Any]] = []

    def shown(row: dict[str, Any]) -> None:
        ended.append(row)
        phase("checks", len(ended), len(chosen))
        sys.stderr.write(line_of(row) + "\n")

    side_by_side = max(1, min(MOST_AT_ONCE, len(os.sched_getaffinity(0)) // CORES_EACH))
    phase("checks", 0, len(chosen))
    runner = CheckRunner(device, gpus, size, 60 * minutes, shown, side_by_side)
    result = summary(runner.run(chosen))
    settings = {"device": device, "gpus": gpus, "sizes": size, "only": only, "minutes": minutes}
    publish("gpu", {"measures": MEASURES, **settings, **result}, results, as_json=as_json)
    if result["failed"]:
        raise typer.Exit(1)


def require_cards(count: int) -> None:
    """Raises ConfigError where torch cannot use so many cards."""
    available = 0
    if importlib.util.find_spec("torch") is not None:
        import torch

        available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if available < count:
        raise ConfigError(
            f"torch can use {available} CUDA cards here, and {count} were asked for",
            "run it where there are cards, or run the same checks with small sizes: --device cpu",
        )


def chosen_checks(only: str, checks: Sequence[GpuCheck]) -> list[GpuCheck]:
    """The checks that `only` names, or whose names begin with an entry of it. Raises typer.BadParameter."""
    if not only:
        return list(checks)
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if not any(f"{check.name}-".startswith(f"{name}-") for check in checks):
            known = ", ".join(check.name for check in checks)
            raise typer.BadParameter(f"{name!r} is no check: {known}", param_hint="--only")
    return [check for check in checks if any(f"{check.name}-".startswith(f"{name}-") for name in names)]


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of outcomes, and the rows. failed: of required checks alone."""
    counts = Counter(row["outcome"] for row in rows)
    failed = sum(row["outcome"] == FAILED and row["required"] for row in rows)
    return {
        "ok": counts["ok"],
        "failed": failed,
        "failed_not_required": counts[FAILED] - failed,
        "skipped": counts["skipped"],
        "checks": list(rows),
    }


def line_of(row: dict[str, Any]) -> str:
    """A check's outcome in a line, for people."""
    reason = f": {row['reason']}" if row["reason"] else ""
    return f"{row['outcome']:<8}{row['name']:<26}{row['seconds']:6.1f} s{reason}"
