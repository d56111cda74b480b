"""A gateway and its env hosts, each in a process of its own, started as the launcher starts them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.gateway.environment import NAME, SERVE
from benchmarks.machine import ROOT
from earl.config.run import RunConfig

READY_S = 60.0
STOP_S = 10.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Process:
    """One process of the fleet, that said it is ready."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    @classmethod
    async def start(cls, module: str, run: Path, name: str, **environment: str) -> Process:
        """Raises RuntimeError when it ends, TimeoutError when it is not ready in time."""
        with (run.parent / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, "--run", str(run), "--name", name,
                cwd=ROOT, env={**os.environ, **environment}, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        try:
            assert process.stdout is not None
            async with asyncio.timeout(READY_S):
                line = await process.stdout.readline()
            if not line:
                raise RuntimeError(f"{name} ended with {await process.wait()}; see its log in {run.parent}")
            return cls(process, json.loads(line)["address"])
        except BaseException:
            if process.returncode is None:
                process.kill()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def rss_mib(self) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"process {self.pid} has no VmRSS")

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    async def stop(self) -> None:
        """SIGTERM and wait; kill it when it stays or is frozen."""
        if self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


class Fleet:
    """gateway, and hosts by name."""

    def __init__(self, run: Path, gateway: Process) -> None:
        self._run = run
        self.gateway = gateway
        self.hosts: dict[str, Process] = {}

    async def add(self, name: str, *, fails: bool = False) -> None:
        """Start a host under this name; one that fails raises in every step."""
        environment = {"EARL_BENCH_FAILS": "1"} if fails else {}
        self.hosts[name] = await Process.start(
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
async def fleet(directory: Path, hosts: int, sessions_per_host: int) -> AsyncIterator[Fleet]:
    """A gateway with hosts host-0, host-1, …"""
    run = _run_file(directory, sessions_per_host)
    made = Fleet(run, await Process.start("services.env_gateway", run, "gateway"))
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
