"""A gateway and its env hosts, each in a process of its own, started as the launcher starts them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.gateway.environment import NAME, SERVE
from benchmarks.process import ServiceProcess
from earl.config.run import RunConfig


class GatewayFleet:
    """gateway, and hosts by name."""

    def __init__(self, run: Path, gateway: ServiceProcess) -> None:
        self._run = run
        self.gateway = gateway
        self.hosts: dict[str, ServiceProcess] = {}

    async def add(self, name: str, *, fails: bool = False) -> None:
        """Starts a host under this name; one that fails raises in every step."""
        environment = {"EARL_BENCH_FAILS": "1"} if fails else {}
        self.hosts[name] = await ServiceProcess.start(
            "earl.env.host",
            self._run,
            name,
            EARL_GATEWAY=self.gateway.address,
            EARL_BENCH_HOST=name,
            **environment,
        )

    async def remove(self, name: str) -> None:
        await self.hosts.pop(name).stop()


@asynccontextmanager
async def fleet(directory: Path, hosts: int, sessions_per_host: int) -> AsyncIterator[GatewayFleet]:
    """A gateway with hosts host-0, host-1, …"""
    run = _run_file(directory, sessions_per_host)
    made = GatewayFleet(run, await ServiceProcess.start("services.env_gateway", run, "gateway"))
    try:
        for number in range(hosts):
            await made.add(f"host-{number}")
        yield made
    finally:
        for process in [*made.hosts.values(), made.gateway]:
            await process.stop()


def _run_file(directory: Path, sessions_per_host: int) -> Path:
    environment = {"name": NAME, "serve": SERVE, "sessions_per_host": sessions_per_host}
    config = RunConfig.model_validate({"name": "bench-gateway", "environment": environment})
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "run.json"
    path.write_text(config.model_dump_json())
    return path
