"""Write a run's timeline as a trace that Perfetto and Chrome open."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Annotated

import typer

from earl.cli.lib.find_run import RunDir, pick_run
from earl.cli.lib.notices import waiting
from earl.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: earl trace tictactoe --out trace.json.gz")
def trace(
    run: RunDir = None,
    out: Annotated[Path, typer.Option(help="The trace's file; .gz at its end compresses it.")] = Path(
        "trace.json"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as a JSON object.")] = False,
) -> None:
    """Write a run's timeline as a trace that Perfetto (ui.perfetto.dev) and Chrome open.

    Processes are tracks: who generated, trained, published when; steps, switches with their reasons,
    evaluations; counters of throughput, lengths, queues, memory. Works while the run is running.
    """
    from earl.cli.report.data import read_run
    from earl.cli.show.trace_events import trace_of

    directory = pick_run(run, ended=True)
    with waiting(f"reading the timeline of {directory}"):
        made = trace_of(read_run(directory))
    try:
        with waiting(f"writing {out}"):
            text = json.dumps(made, separators=(",", ":")).encode()
            out.write_bytes(gzip.compress(text) if out.suffix == ".gz" else text)
    except OSError as error:
        raise ConfigError(
            f"{out} cannot be written: {error.strerror}", "give another file with --out"
        ) from None
    count = len(made["traceEvents"])
    if as_json:
        print(json.dumps({"trace": str(out), "events": count, "bytes": out.stat().st_size}))
    else:
        print(f"{out}: {count} events; open it at https://ui.perfetto.dev")
