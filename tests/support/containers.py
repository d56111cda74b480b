"""Containers of EARL under podman, and the run in them as an operator outside sees it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from earl.errors import EarlError
from earl.rpc import TlsFiles
from earl.rpc.access import Access
from earl.stack.codec import OperatorClient
from earl.stack.status import RunStatus

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
HOSTED = "earl.env.adapters.open_spiel:environments"
LINK = re.compile(r"https?://[^\s/]+/\?token=\S+")
# Of a user in the images: what they may not be root for.
USER = 10001


def _tool():
    spec = importlib.util.spec_from_file_location("earl_tools_containers", ROOT / "tools" / "containers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = _tool()
IMAGE: str = tool.IMAGE


def podman(*arguments: str, timeout_s: float = 120.0, check: bool = True) -> str:
    """Returns what podman printed. An error shows what it said."""
    done = subprocess.run(
        ["podman", *arguments], env=tool.environment(), capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, f"podman {' '.join(arguments)}:\n{done.stderr}"
    return done.stdout


def said(container: str, lines: int = -1) -> str:
    """The last lines of its log, or all of it: what it wrote to standard output and to standard error."""
    done = subprocess.run(
        ["podman", "logs", "--tail", str(lines), container], env=tool.environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout


def link_in(log: str) -> str:
    """The last link to the page that a dashboard's log has: other lines may follow it."""
    links = [line.strip() for line in log.splitlines() if LINK.fullmatch(line.strip())]
    assert links, f"no link in:\n{log}"
    return links[-1]


def inside(container: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in a container that runs."""
    return subprocess.run(
        ["podman", "exec", container, *command], env=tool.environment(), capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def make_secrets(directory: Path, script: str = "compose/secrets.sh", *hosts: str) -> Path:
    """Tokens, certificates and passwords, made by the image as root: its user's group may read them."""
    directory.mkdir(parents=True)
    podman(
        "run", "--rm", "--network", "none", "--user", "0:0", "--volume", f"{DEPLOY / script}:/secrets.sh:ro",
        "--volume", f"{directory}:/out", IMAGE, "/secrets.sh", "/out", *hosts,
    )  # fmt: skip
    return directory


def place(secrets: Path, name: str) -> Path:
    """Returns the path of a file of the secrets: compose has directories for some, Kubernetes its own."""
    (found,) = secrets.rglob(name)
    return found


@asynccontextmanager
async def operator(address: str, secrets: Path) -> AsyncIterator[OperatorClient]:
    """Asks the scheduler at a published port, with the operator's token."""
    file = Path("/out") / place(secrets, "tokens.toml").relative_to(secrets)
    shown = podman(
        "run", "--rm", "--network", "none", "--user", "0:0", "--volume", f"{secrets}:/out:ro", IMAGE,
        "earl", "tokens", "show", "operator", "--file", str(file),
    )  # fmt: skip
    client = OperatorClient(address, Access(shown.strip(), TlsFiles(authority=secrets / "ca.pem")))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def env_host(gateway: str, secrets: Path, log: Path) -> AsyncIterator[None]:
    """`earl env serve` on this machine, outside of all containers, with the environment's token alone."""
    told = {name: value for name, value in os.environ.items() if not name.startswith("EARL_")}
    token = place(secrets, "environment_token")
    told |= {"EARL_TOKEN_FILE": str(token), "EARL_TLS_CA": str(secrets / "ca.pem")}
    command = ("-m", "earl.cli.main", "env", "serve", HOSTED, "--gateway", gateway)
    with log.open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, env=told, stdout=said, stderr=said
        )
    try:
        yield
        assert process.returncode is None, f"the env host ended, see {log}"
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(30):
            await process.wait()


async def finished(client: OperatorClient, within_s: float, containers: Sequence[str]) -> RunStatus:
    """The run's last status. Fails with the logs of these containers if it does not end in time."""
    return await reached(client, within_s, containers, lambda status: status.done)


async def reached(
    client: OperatorClient,
    within_s: float,
    containers: Sequence[str],
    there: Callable[[RunStatus], bool],
) -> RunStatus:
    """The first status that is `there`. Fails with the logs of these containers if none is in time."""
    status = None
    try:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    status = await client.status(10.0)
                    if there(status):
                        return status
                except EarlError:
                    pass  # it starts
                await asyncio.sleep(1.0)
    except TimeoutError:
        logs = "\n\n".join(f"{name}:\n{said(name, 20)}" for name in containers)
        raise AssertionError(f"the run did not get there: {status}\n{logs}") from None


def names(kind: str) -> list[str]:
    """Names of what is there. kind: "container", "volume", "network" or "pod"."""
    everything = ["--all"] if kind == "container" else []
    listed = json.loads(podman(kind, "ls", *everything, "--format", "json") or "[]")
    return [(one.get("Names") or [one.get("Name") or one.get("name")])[0] for one in listed]
