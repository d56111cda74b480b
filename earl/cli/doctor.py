"""Say what works on this machine: ways and devices of the data plane, each tried out.

Each probe runs in a process of its own and within PROBE_S, so that no library can take the command down.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from earl.cli.findings import Finding, data_plane
from earl.config.data_plane import DataPlaneConfig
from earl.config.load import load_run

app = typer.Typer(add_completion=False)

PROBES = ("memory", "ucx", "nixl", "rdma", "device")
PROBE_S = 60.0


@app.command(epilog="Example: earl doctor examples/tictactoe.toml")
def doctor(
    run_file: Annotated[
        Path | None, typer.Argument(metavar="[RUN.toml]", help="Run file whose data plane is meant.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as one JSON object.")] = False,
) -> None:
    """Say what works on this machine: ways and devices of the data plane, each tried out.

    Shared memory, UCX and NIXL each move 16 MiB from an arena. Exit code 1 if the data plane of the run
    file, or the default one, cannot work here; what it does not need may be missing.
    """
    config = load_run(run_file).data_plane if run_file is not None else DataPlaneConfig()
    findings = data_plane(config, asyncio.run(probe_all(config)))
    works = not any(finding.fatal for finding in findings)
    if as_json:
        print(json.dumps({"works": works, "findings": [asdict(finding) for finding in findings]}))
    else:
        print("\n".join(lines(findings, str(run_file) if run_file is not None else "the default data plane")))
    raise typer.Exit(0 if works else 1)


def lines(findings: Sequence[Finding], who: str) -> Iterable[str]:
    """A line for each finding, its remedy below it, and the verdict."""
    for finding in findings:
        mark = "ok" if finding.works else "NO" if finding.needed else "no"
        yield f"{mark}  {finding.name:<15}  {finding.said}"
        if finding.remedy:
            yield f"{'':<21}-> {finding.remedy}"
    fatal = ", ".join(finding.name for finding in findings if finding.fatal)
    yield f"{who} cannot work here: {fatal}" if fatal else f"{who} works here"


async def probe_all(config: DataPlaneConfig) -> dict[str, dict[str, Any]]:
    """What each probe found, by name. One after the other: rates are not shared, nor is the arena's room."""
    return {name: await probe(name, config) for name in PROBES}


async def probe(name: str, config: DataPlaneConfig, timeout_s: float = PROBE_S) -> dict[str, Any]:
    """{"facts", "error"} of one probe; a crash and a timeout are errors like any other."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "earl.dispatch.probe",
        name,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate(config.model_dump_json().encode())
    except TimeoutError:
        return _failed(f"its probe did not end within {timeout_s:g} s", f"look why: {_by_hand(name)}")
    finally:
        if process.returncode is None:
            # With what it started: a serving process of its own may be stuck too.
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    with suppress(ValueError, IndexError):
        return json.loads(out.decode().splitlines()[-1])  # libraries may talk before it
    last = (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    return _failed(f"its probe ended with {process.returncode}: {last}", f"see all of it: {_by_hand(name)}")


def _failed(message: str, remedy: str) -> dict[str, Any]:
    return {"facts": {}, "error": {"message": message, "remedy": remedy}}


def _by_hand(name: str) -> str:
    return f"echo '{{}}' | python -m earl.dispatch.probe {name}"
