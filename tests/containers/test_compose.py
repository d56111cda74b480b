"""deploy/compose as it stands, under podman: a shorter demo trained in containers, taken down in between,
played by a host in a container and then by one outside of them, and looked at by its dashboard.

That the whole demo learns to win, `make demo` and `earl bench demo` show.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from earl.errors import PermissionDenied
from earl.stack.ports import resolve_bind
from earl.stack.status import RunStatus
from tests.support import containers
from tests.support.containers import DEPLOY, inside, podman

SERVICES = ("valkey", "scheduler", "gateway", "trainer", "rollout", "dashboard")
# The run file of containers, shorter: enough that the interval of the gain lies above 0.
RUN_FILE = DEPLOY / "k8s" / "overlays" / "cpu-demo" / "run.toml"
SHORTER = {
    "steps = 140": "steps = 30",
    "batches = 6": "batches = 3",
    "batch_episodes = 1024": "batch_episodes = 512",
    "minibatches = 32": "minibatches = 16",
}
# In the middle of these steps: what was done is worth keeping, and there is more to do.
TAKEN_DOWN_AT = 5
PROFILES = ("--profile", "cpu", "--profile", "env")


class Compose:
    """The project under a name of its own, its ports free ones."""

    def __init__(self, secrets: Path, run_file: Path) -> None:
        self.scheduler, self.gateway, self.dashboard = (
            resolve_bind("127.0.0.1:0", key) for key in ("scheduler", "gateway", "dashboard")
        )
        self.project = f"earl-test-{os.getpid()}"
        self._environment = {
            **containers.tool.environment(),
            "EARL_IMAGE": containers.IMAGE,
            "EARL_RUN_FILE": str(run_file),
            "EARL_SECRETS": str(secrets),
            "EARL_ARENAS_PAGES": str((1 << 30) // 4096),
            "EARL_SCHEDULER_PORT": self.scheduler.rpartition(":")[2],
            "EARL_GATEWAY_PORT": self.gateway.rpartition(":")[2],
            "EARL_DASHBOARD_PORT": self.dashboard.rpartition(":")[2],
        }

    def __call__(self, *arguments: str, timeout_s: float = 300.0) -> str:
        command = [
            str(containers.tool.COMPOSE_COMMAND),
            "-p",
            self.project,
            "-f",
            str(DEPLOY / "compose" / "compose.yaml"),
            *arguments,
        ]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def container(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    def mine(self, kind: str) -> list[str]:
        return [name for name in containers.names(kind) if name.startswith(self.project)]


def shortened(run_file: str) -> str:
    for long, short in SHORTER.items():
        assert long in run_file
        run_file = run_file.replace(long, short)
    return run_file


@pytest.fixture
def compose(secrets: Path, tmp_path: Path) -> Iterator[Compose]:
    run_file = tmp_path / "run.toml"
    run_file.write_text(shortened(RUN_FILE.read_text(encoding="utf-8")), encoding="utf-8")
    run_file.chmod(0o644)
    made = Compose(secrets, run_file)
    try:
        yield made
    finally:
        made(*PROFILES, "down", "-v", "-t", "10")


@pytest.mark.slow
@pytest.mark.timeout(2400)
async def test_the_demo_learns_in_containers(compose: Compose, secrets: Path, tmp_path: Path) -> None:
    before = await half_of_it(compose, secrets)
    await asyncio.to_thread(compose, "--profile", "cpu", "up", "-d", "--no-build")
    all_of_them = [compose.container(name) for name in SERVICES]
    async with (
        containers.operator(compose.scheduler, secrets) as client,
        containers.env_host(compose.gateway, secrets, tmp_path / "env.log"),
    ):
        trainer = compose.container("trainer")
        again = await containers.reached(
            client, 120.0, all_of_them, lambda status: bool(status.run and resumed(trainer))
        )
        # podman-compose stops all containers at once: the trainer saves with nobody left.
        assert again.phase == before.phase == "train" and resumed(trainer) >= before.version
        status = await containers.finished(client, 600.0, all_of_them)
        final = status.evaluations[-1]
        assert final.gain is not None and final.gain.bounds is not None and final.gain.bounds.low > 0, final
        ledger = status.ledger
        assert ledger.issued == ledger.trained + ledger.evaluated + ledger.dropped_total + ledger.live
        # One tmpfs for all: trajectories and weights went through shared memory.
        moved = {path for worker in status.workers for path in worker.transfers}
        assert moved == {"shm"}
        for name in ("scheduler", "gateway", "dashboard"):
            check_confined(compose.container(name))
        for name in ("scheduler", "gateway"):
            probe = inside(compose.container(name), "python", "-m", "earl.rpc.probe", "localhost:7000")
            assert probe.returncode == 0, probe.stderr
        assert inside(compose.container("valkey"), "python", "-m", "earl.bus.ping").returncode == 0
    await asyncio.to_thread(compose, *PROFILES, "down", "-v")
    assert [compose.mine(kind) for kind in ("container", "volume", "network")] == [[], [], []]


def resumed(trainer: str) -> int:
    """The version that it says to have gone on from; 0 as long as it does not."""
    found = re.search(r"resumed version (\d+)", containers.said(trainer))
    return int(found[1]) if found else 0


async def half_of_it(compose: Compose, secrets: Path) -> RunStatus:
    """The run taken down after some steps, its volumes kept; what its scheduler said last."""
    await asyncio.to_thread(compose, "--profile", "cpu", "up", "-d", "--no-build")
    await asyncio.to_thread(compose, *PROFILES, "up", "-d", "--no-build")
    started = [compose.container(name) for name in (*SERVICES, "env")]
    async with containers.operator(compose.scheduler, secrets) as client:
        await containers.reached(
            client, 900.0, started, lambda status: status.phase == "train" and status.step >= TAKEN_DOWN_AT
        )
        check_dashboard(compose, secrets)
        status = await client.status(10.0)
        assert not status.done
    await asyncio.to_thread(compose, *PROFILES, "down", timeout_s=600.0)
    assert compose.mine("container") == [] and compose.mine("volume") != []
    return status


def check_dashboard(compose: Compose, secrets: Path) -> None:
    """Its page opens by the link in its log, once; its container shows the run and can change nothing."""
    name = compose.container("dashboard")
    link = containers.link_in(containers.said(name))
    context = ssl.create_default_context(cafile=str(secrets / "ca.pem"))
    with urllib.request.urlopen(link, timeout=30, context=context) as page:
        assert page.status == 200 and b"<html" in page.read()
    assert link.startswith(f"https://localhost:{compose.dashboard.rpartition(':')[2]}/")
    assert containers.link_in(containers.said(name)) != link
    fleet = ("--scheduler", "scheduler:7000", "--gateway", "gateway:7000", "--json")
    shown = inside(name, "earl", "status", *fleet)
    assert shown.returncode == 0, shown.stderr
    workers = json.loads(shown.stdout)["status"]["workers"]
    assert {worker["name"] for worker in workers} == {"trainer", "rollout-0"}
    assert inside(name, "touch", "/var/lib/earl/run/x").returncode != 0
    command = ("parallelism", "set", "rollout", "tp=1", "--pin", "--run", "/var/lib/earl/run")
    denied = inside(name, "earl", *command)
    assert denied.returncode == PermissionDenied.exit_code, denied.stdout + denied.stderr


def check_confined(container: str) -> None:
    """Not root, no capability, nothing to write to but what was given."""
    status = inside(container, "cat", "/proc/1/status").stdout
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert set(fields["Uid"].split()) == {str(containers.USER)}
    assert [int(fields[name], 16) for name in ("CapEff", "CapBnd", "CapPrm")] == [0, 0, 0]
    assert fields["NoNewPrivs"].strip() == "1"
    assert inside(container, "touch", "/opt/earl/x").returncode != 0
    assert inside(container, "touch", "/tmp/x").returncode == 0
    for tool in ("gcc", "pip"):
        assert inside(container, "sh", "-c", f"command -v {tool}").returncode != 0
    assert podman("inspect", "--format", "{{.HostConfig.ReadonlyRootfs}}", container).strip() == "true"
