"""Ask what a policy would have done on a recorded trace; no cluster."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from earl.cli.lib.notices import waiting
from earl.errors import ConfigError
from services.scheduler.profile import rows
from services.scheduler.profile.table import ProfileTable
from services.scheduler.selector import trace
from services.scheduler.selector.decision import Outlook
from services.scheduler.selector.policies import NAMES, policy_of
from services.scheduler.selector.replay import Taken, Totals, costs_of, oracle, run, totals
from services.scheduler.selector.shared_devices import SharedTable

app = typer.Typer(add_completion=False)

MOST_BYTES = 64 << 20


@app.command(
    epilog="Example: earl replay --profile examples/selector/profile.csv --trace examples/selector/trace.csv"
)
def replay(
    profile: Annotated[Path, typer.Option(help=f"CSV: {','.join(rows.COLUMNS)}")],
    trace_file: Annotated[Path, typer.Option("--trace", help=f"CSV: {','.join(trace.COLUMNS)}")],
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}.")] = "earl",
    switch_cost_s: Annotated[float, typer.Option(help="Seconds that a switch takes.")] = 1.0,
    longest: Annotated[
        float | None,
        typer.Option(
            help="Most tokens that a sequence of the run can have, if its file says; policies know it."
        ),
    ] = None,
    most: Annotated[
        float | None, typer.Option(help="Most sequences at once that the run can have, likewise.")
    ] = None,
    stage: Annotated[
        str,
        typer.Option(help="Stage of a profile with several; with commas: stages that share the devices."),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON line a step, then one of totals.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of the replay: a .png file.")] = None,
) -> None:
    """Ask what a policy would have done on a recorded trace; no cluster.

    Before a step, the policy has seen the rows before it, and the number of devices. A step lasts
    concurrency x mean_tokens / (tokens_per_device_s x devices) seconds; a step that runs out of memory is
    lost, and runs again with the best that fits, between a switch there and one back. The oracle knows the
    whole trace.
    """
    if not math.isfinite(switch_cost_s) or switch_cost_s < 0:
        raise ConfigError(f"--switch-cost-s is {switch_cost_s}", "give seconds, 0 or more")
    for option, value in (("--longest", longest), ("--most", most)):
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{option} is {value:g}", "give a number above 0, or leave it out")
    if plot is not None and plot.suffix.lower() != ".png":
        raise ConfigError(f"--plot is {plot}", "name a .png file")
    if plot is not None and not plot.parent.is_dir():
        raise ConfigError(
            f"--plot {plot}: there is no directory {plot.parent}", "make it, or write elsewhere"
        )
    with waiting("reading the profile and the trace"):
        table = _table(profile, stage, (longest or math.inf, most or math.inf))
        steps = trace.parse(_text(trace_file), str(trace_file))
    chosen = policy_of(policy, table, switch_cost_s)
    with waiting(f"computing what the oracle does in {len(steps):,} steps"):
        costs = costs_of(table, steps)
        path, oracle_seconds = oracle(costs, switch_cost_s)
    taken: list[Taken] = []
    with waiting("replaying steps", progress=lambda: (len(taken), len(steps))):
        for step in run(chosen, steps, costs, switch_cost_s):
            taken.append(step)
            if as_json:
                _print(_line(step))
    sums = totals(taken, oracle_seconds)
    if as_json:
        _print(asdict(sums))
    else:
        _show(taken, sums, chosen.name)
    if plot is not None:
        from services.scheduler.replay.plot import draw

        try:
            with waiting(f"drawing {plot}"):
                draw(plot, table, steps, taken, path, chosen.name)
        except OSError as error:
            raise ConfigError(f"--plot {plot} cannot be written: {error}", "write elsewhere") from None
        sys.stderr.write(f"written: {plot}\n")


def _table(path: Path, stage: str, bound: tuple[float, float]) -> Outlook:
    profile_rows = rows.parse(_text(path), str(path))
    stages = sorted({row.stage for row in profile_rows})
    chosen = [name.strip() for name in stage.split(",")] if stage else stages
    for name in chosen:
        if name not in stages:
            raise ConfigError(f"{path} has no rows of stage {name!r}", f"it has {', '.join(stages)}")
    if not stage and len(stages) > 1:
        raise ConfigError(
            f"{path} has rows of several stages: {', '.join(stages)}", "choose one with --stage"
        )
    tables = [ProfileTable(profile_rows, name, bound=bound) for name in dict.fromkeys(chosen)]
    return tables[0] if len(tables) == 1 else SharedTable(tables)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path} is larger than {MOST_BYTES >> 20} MiB", "leave rows out")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", "give a CSV file") from None


def _line(step: Taken) -> dict[str, object]:
    chosen = step.decision.chosen
    return {
        "step": step.decision.step,
        "parallelism": step.decision.after.as_dict(),
        "switched": step.decision.switched,
        "reason": step.decision.reason,
        "predicted_tokens_per_device_s": chosen.tokens_per_device_s if chosen is not None else None,
    }


def _print(line: dict[str, object]) -> None:
    """Prints a line without delay, for a person who reads along."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _show(taken: Sequence[Taken], sums: Totals, name: str) -> None:
    """Prints the steps in which the parallelism changed or memory ran out, and the totals."""
    console = Console()
    shown = Table("step", "parallelism", "reason", title=f"{name}: {len(taken)} steps")
    for index, step in enumerate(taken):
        if index == 0 or step.decision.switched or step.oom:
            oom = " (out of memory)" if step.oom else ""
            shown.add_row(str(step.decision.step), f"{step.decision.after}{oom}", step.decision.reason)
    console.print(shown)
    console.print(
        f"{sums.seconds:.6g} s, {sums.regret_vs_oracle:.1%} more than the oracle's "
        f"{sums.oracle_seconds:.6g} s; {sums.switches} switches, {sums.oom_steps} steps out of memory"
    )
