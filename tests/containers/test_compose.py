"""deploy/compose as it stands, under podman: the demo trained in containers, played from outside of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from earl.stack.ports import resolve_bind
from tests.support import containers
from tests.support.containers import DEPLOY, inside, podman

SERVICES = ("valkey", "scheduler", "gateway", "trainer", "rollout")
# What the demo learns (docs/benchmarks.md).
WIN_RATE = 0.85


class Compose:
    """The project under a name of its own, its ports free ones."""

    def __init__(self, secrets: Path) -> None:
        self.scheduler, self.gateway = (resolve_bind("127.0.0.1:0", key) for key in ("scheduler", "gateway"))
        self.project = f"earl-test-{os.getpid()}"
        self._environment = {
            **containers.tool.environment(),
            "EARL_IMAGE": containers.IMAGE,
            "EARL_SECRETS": str(secrets),
            "EARL_ARENAS_PAGES": str((1 << 30) // 4096),
            "EARL_SCHEDULER_PORT": self.scheduler.rpartition(":")[2],
            "EARL_GATEWAY_PORT": self.gateway.rpartition(":")[2],
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


@pytest.fixture
def compose(secrets: Path) -> Iterator[Compose]:
    made = Compose(secrets)
    try:
        yield made
    finally:
        made("--profile", "cpu", "down", "-v", "-t", "10")


@pytest.mark.slow
@pytest.mark.timeout(2400)
async def test_the_demo_is_learned_in_containers(compose: Compose, secrets: Path, tmp_path: Path) -> None:
    await asyncio.to_thread(compose, "--profile", "cpu", "up", "-d", "--no-build")
    all_of_them = [compose.container(name) for name in SERVICES]
    async with (
        containers.operator(compose.scheduler, secrets) as client,
        containers.env_host(compose.gateway, secrets, tmp_path / "env.log"),
    ):
        status = await containers.finished(client, 1200.0, all_of_them)
        final = status.evaluations[-1]
        assert final.win_rate >= WIN_RATE, final
        ledger = status.ledger
        live = ledger.pending + ledger.leased + ledger.ready + ledger.planned
        assert ledger.issued == ledger.trained + ledger.evaluated + sum(ledger.dropped.values()) + live
        # One tmpfs for all: trajectories and weights went through shared memory.
        moved = {path for worker in status.workers for path in worker.transfers}
        assert moved == {"shm"}
        for name in ("scheduler", "gateway"):
            check_confined(compose.container(name))
            probe = inside(compose.container(name), "python", "-m", "earl.rpc.probe", "localhost:7000")
            assert probe.returncode == 0, probe.stderr
        assert inside(compose.container("valkey"), "python", "-m", "earl.bus.ping").returncode == 0
    await asyncio.to_thread(compose, "--profile", "cpu", "down", "-v")
    assert [compose.mine(kind) for kind in ("container", "volume", "network")] == [[], [], []]


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
