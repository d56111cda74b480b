"""A gateway and its env hosts, each in a process of its own, started as the launcher starts them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.gateway.environment import SERVE, names
from benchmarks.process import ServiceProcess
from earl.config.run import RunConfig


class GatewayFleet:
    """gateway, and hosts by name."""

    def __init__(self, run: Path, gateway: ServiceProcess, environments: int) -> None:
        self._run = run
        self._environments = environments
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
            EARL_BENCH_ENVIRONMENTS=str(self._environments),
            **environment,
        )

    async def remove(self, name: str) -> None:
        await self.hosts.pop(name).stop()


@asynccontextmanager
async def fleet(
    directory: Path, hosts: int, sessions_per_host: int, environments: int = 1
) -> AsyncIterator[GatewayFleet]:
    """A gateway with hosts host-0, host-1, …, which all serve so many environments."""
    run = _run_file(directory, sessions_per_host, environments)
    gateway = await ServiceProcess.start("services.env_gateway", run, "gateway")
    made = GatewayFleet(run, gateway, environments)
    try:
        for number in range(hosts):
            await made.add(f"host-{number}")
        yield made
    finally:
        for process in [*made.hosts.values(), made.gateway]:
            await process.stop()


def _run_file(directory: Path, sessions_per_host: int, environments: int) -> Path:
    sections = [
        {"name": name, "serve": SERVE, "sessions_per_host": sessions_per_host} for name in names(environments)
    ]
    mixed = {"environment": sections[0]} if environments == 1 else {"environments": sections}
    config = RunConfig.model_validate({"name": "bench-gateway", **mixed})
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "run.json"
    path.write_text(config.model_dump_json())
    return path
