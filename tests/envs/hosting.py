"""A gateway and an env host in processes of their own, the host with whatever Python it needs."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from earl.config.run import RunConfig
from earl.env import GatewayClient, Limits
from tests.support import needs

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(queue_s=120, reset_s=120, step_s=60, episode_s=400)
# Packages with hundreds of modules, on a machine that may be busy.
READY_S = 300


def needed(python: Path) -> Path:
    """The Python of an environment of its own. Without it the test is skipped; make test-envs fails."""
    if not python.exists():
        needs.lacking(f"there is no {python.parents[1].name}: make setup-envs")
    return python


def installed(package: str) -> None:
    """The module's tests need this package beside EARL; without it as with `needed`."""
    if importlib.util.find_spec(package) is None:
        needs.lacking(f"the package {package} is not installed: make setup", module=True)


@contextmanager
def hosted(
    directory: Path, serve: str, name: str, python: str | Path = sys.executable, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A gateway's address, and the process of a host that serves `serve`, which has `name`."""
    settings = {"name": name, "serve": serve, "sessions_per_host": 16}
    # Tests break things in a row, on purpose.
    gateway = {"bind": "127.0.0.1:0", "quarantine_faults": 1000}
    config = RunConfig.model_validate({"name": "test", "environment": settings, "gateway": gateway})
    run = directory / "run.json"
    run.write_text(config.model_dump_json())
    with ExitStack() as stack:

        def process(python: str | Path, module: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
            log = directory / f"{module}.log"
            made = started([str(python), "-m", module, "--run", str(run)], log, **environment)
            stack.callback(_ended, made)
            return made, _address(made, log)

        _, address = process(sys.executable, "services.env_gateway")
        host, _ = process(python, "earl.env.host", EARL_GATEWAY=address, **environment)
        yield address, host


@asynccontextmanager
async def playing(address: str) -> AsyncIterator[GatewayClient]:
    """A client of the gateway."""
    client = GatewayClient(address)
    try:
        yield client
    finally:
        await client.close()


def started(command: list[str], log: Path, **environment: str) -> subprocess.Popen[str]:
    """A process in the repository's root, its stdout to be read, its stderr in a file."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with log.open("w") as stderr:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path} | environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )


def _address(process: subprocess.Popen[str], log: Path) -> str:
    """Returns the address that the process announces within READY_S."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], READY_S)
    line = process.stdout.readline() if readable else ""
    assert line, log.read_text()[-3000:]
    return json.loads(line)["address"]


def _ended(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(30)
    finally:
        process.kill()
        process.communicate()
