"""The environment gateway's throughput, open sessions and failures, compared with an OpenEnv server."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gateway import openenv
from benchmarks.gateway.measure import (
    HOSTS,
    OBSERVATION_BYTES,
    GatewayWork,
    drills,
    isolation,
    mixture,
    throughput,
)
from benchmarks.mixture_cost import Environments, MixtureRounds, parts_to_measure
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
    "fails every step, each host with capacity for its share of the sessions; below 0 they gained. "
    "openenv_steps_per_s: the same environment behind as many OpenEnv server processes as there are hosts, "
    "played by OpenEnv's own client over WebSockets in one process, a session each, in closed loops. "
    "mixture_ratio (only with --environments): steps a second of sessions that are spread over so many "
    "environments of the same hosts, over those of one environment, the medians of rounds in turns; each "
    "measurement has processes of its own."
)


@app.command(cls=RecordedCommand)
def gateway(
    sessions: Annotated[int, typer.Option(min=HOSTS, help="Sessions that step at once.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each measured interval.")] = 8.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of throughput and of each comparison.")] = 3,
    open_sessions: Annotated[
        int, typer.Option(min=0, help="Sessions held open at once for rss_mib.")
    ] = 10_000,
    parts: Annotated[str, typer.Option(help=f"Any of {', '.join(PARTS)}, separated by commas.")] = ",".join(
        PARTS
    ),
    environments: Environments = 1,
    mixture_rounds: MixtureRounds = 3,
    openenv_python: Annotated[
        str, typer.Option(help="Python of an environment that has openenv; none: no comparison.")
    ] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure the environment gateway's throughput, memory and failures, compared with an OpenEnv server."""
    chosen = parts_to_measure(parts, PARTS, environments)
    work = GatewayWork(sessions, seconds, rounds, open_sessions)
    with tempfile.TemporaryDirectory(prefix="earl-bench-gateway-") as temporary:
        figures = asyncio.run(_measure(chosen, work, Path(temporary), openenv_python))
        if environments > 1:
            directory = Path(temporary) / "mixture"
            figures |= asyncio.run(mixture(directory, work, environments, mixture_rounds))
    cores = len(os.sched_getaffinity(0))
    publish("gateway", {"measures": MEASURES, "cores": cores, **figures}, results, as_json=as_json)


async def _measure(chosen: list[str], work: GatewayWork, directory: Path, python: str) -> dict[str, Any]:
    figures: dict[str, Any] = {"sessions": work.sessions, "hosts": HOSTS}
    if "throughput" in chosen:
        figures |= await throughput(directory / "throughput", work)
    if "openenv" in chosen:
        figures |= await openenv.measure(python, work)
    if "drills" in chosen:
        figures |= await drills(directory / "drills")
    if "isolation" in chosen:
        figures |= await isolation(directory / "isolation", work)
    return figures
