"""Makes the paper's figures again, one after another; continues where it was cut off."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.paper import fig1, fig3, fig4, limitations, memory70b, table1
from benchmarks.paper.figure import PaperFigure
from benchmarks.paper.settings import PaperSettings
from benchmarks.record.checkout import checkout
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.machine import described
from benchmarks.record.progress import phase
from benchmarks.record.results import publish
from earl.errors import EarlError

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "earl/dispatch",
    "earl/env/adapters/relay.py",
    "earl/episode_contract.py",
    "examples/growing_context.toml",
    "services",
    "benchmarks/dispatch",
    "benchmarks/network",
    "benchmarks/paper",
)

FIGURES: dict[str, Callable[[PaperSettings], PaperFigure]] = {
    "table1": table1.figure,
    "fig1": fig1.figure,
    "fig3": fig3.figure,
    "fig4": fig4.figure,
    "memory70b": memory70b.figure,
    "limitations": limitations.figure,
}


@app.command(cls=RecordedCommand)
def paper(
    figure: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {', '.join(FIGURES)}; may be given several times. All of them if not given."
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Make figures again that are kept.")] = False,
    hosts: Annotated[int, typer.Option(min=2, max=64, help="fig4: hosts, a power of two.")] = 16,
    gbps: Annotated[float, typer.Option(min=0.01, help="fig4: Gbit/s of each host's link.")] = 0.25,
    sizes: Annotated[str, typer.Option(help="fig4: MiB a worker, separated by commas.")] = "46,93,187",
    rounds: Annotated[int, typer.Option(min=1, help="fig4: rounds of each size.")] = 3,
    runs_of: Annotated[
        Path | None,
        typer.Option(metavar="RESULT.json", help="fig1: sum up the runs of a saved result, make none."),
    ] = None,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Make the figures of the EARL paper again, next to the paper's own.

    A figure that was finished at this commit, on this machine, with these settings is kept and not made
    again. A figure that cannot be made here says why; the others are made, and the command fails at its end.
    """
    try:
        sizes_mib = tuple(float(size) for size in sizes.split(","))
    except ValueError:
        raise typer.BadParameter(f"{sizes!r} is no list of MiB such as 46,187", param_hint="sizes") from None
    unknown = [name for name in figure or () if name not in FIGURES]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: use {', '.join(FIGURES)}", param_hint="figure")
    settings = PaperSettings(hosts, gbps, sizes_mib, rounds, runs_of)
    names = list(dict.fromkeys(figure)) if figure else list(FIGURES)
    state, machine = checkout(), described()
    made: dict[str, dict[str, Any]] = {}
    failed: dict[str, EarlError] = {}
    for number, name in enumerate(names):
        phase(f"figures, now {name}", number, len(names))
        try:
            chosen = FIGURES[name](settings)
            kept = None if again else chosen.kept(results, state, machine)
            if kept is None:
                values = chosen.made()
                path = publish(chosen.result_name, values, results, as_json=False)
                kept = {**values, "file": path.name}
            else:
                sys.stderr.write(f"kept: {name}, of {kept['file']}\n")
            made[name] = kept
        except EarlError as error:
            sys.stderr.write(f"{name}: {error}\n")
            failed[name] = error
    if as_json:
        print(json.dumps(summary(state.label, made, failed)))
    else:
        for name, values in made.items():
            missed = f", missed: {', '.join(values['missed'])}" if values["missed"] else ""
            print(f"{name}: {values['file']}{missed}")
    if failed:
        raise next(iter(failed.values()))


def summary(
    commit: str | None, made: dict[str, dict[str, Any]], failed: dict[str, EarlError]
) -> dict[str, Any]:
    """The figures by name, the goals that each misses, and why a figure could not be made."""
    return {
        "benchmark": "paper",
        "commit": commit,
        "missed": {name: values["missed"] for name, values in made.items() if values["missed"]},
        "failed": {name: str(error) for name, error in failed.items()},
        "figures": made,
    }
