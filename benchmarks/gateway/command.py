"""What the environment gateway carries, holds and survives, beside an OpenEnv server."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gateway import openenv
from benchmarks.gateway.measure import HOSTS, OBSERVATION_BYTES, Work, drills, isolation, throughput
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.results import publish

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/env_gateway",
    "earl/env",
    "earl/rpc",
)

PARTS = ("throughput", "drills", "isolation", "openenv")
MEASURES = (
    f"A client process, a gateway process and {HOSTS} env host processes on one machine; observations of "
    f"{OBSERVATION_BYTES} bytes from an environment that costs nothing. steps_per_s, p50_ms, p99_ms: closed "
    "loops, each session's next step follows its answer at once; from the client's call to its result, of "
    "the median round. cpu_us_per_step: processor time of each kind of process. rss_mib: of the gateway "
    "with open_sessions open, each after a step. killed_noticed_s, frozen_noticed_s: from SIGKILL or "
    "SIGSTOP to a host until the last session that was stepping there has ended (EnvHostLost is "
    "INFRA_ERROR); others: what became of sessions that had taken no step and of those that were opened "
    "in that moment. isolation_loss: the share of their throughput that three hosts lose while the fourth "
    "fails every step, each host with room for its share of the sessions; below 0 they gained. "
    "openenv_steps_per_s: the same environment behind as many OpenEnv server processes as there are hosts, "
    "played by OpenEnv's own client over WebSockets in one process, a session each, in closed loops."
)


@app.command(cls=RecordedCommand)
def gateway(
    sessions: Annotated[int, typer.Option(min=HOSTS, help="Stepping at once.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each measured interval.")] = 8.0,
    rounds: Annotated[int, typer.Option(min=1, help="Of throughput, and of what is compared.")] = 3,
    open_sessions: Annotated[int, typer.Option(min=0, help="Held open at once, for rss_mib.")] = 10_000,
    parts: Annotated[str, typer.Option(help=f"Of {', '.join(PARTS)}; separated by commas.")] = ",".join(
        PARTS
    ),
    openenv_python: Annotated[
        str, typer.Option(help="Python of an environment that has openenv; empty: no comparison.")
    ] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """What the environment gateway carries, holds and survives, beside an OpenEnv server."""
    wanted = parts.split(",")
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: use {', '.join(PARTS)}", param_hint="parts")
    work = Work(sessions, seconds, rounds, open_sessions)
    with tempfile.TemporaryDirectory(prefix="earl-bench-gateway-") as temporary:
        found = asyncio.run(_measure(wanted, work, Path(temporary), openenv_python))
    cores = len(os.sched_getaffinity(0))
    publish("gateway", {"measures": MEASURES, "cores": cores, **found}, results, as_json=as_json)


async def _measure(wanted: list[str], work: Work, directory: Path, python: str) -> dict[str, Any]:
    found: dict[str, Any] = {"sessions": work.sessions, "hosts": HOSTS}
    if "throughput" in wanted:
        found |= await throughput(directory / "throughput", work)
    if "openenv" in wanted:
        found |= await openenv.measure(python, work)
    if "drills" in wanted:
        found |= await drills(directory / "drills")
    if "isolation" in wanted:
        found |= await isolation(directory / "isolation", work)
    return found
