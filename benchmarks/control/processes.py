"""The processes that are measured: a Valkey, a scheduler, players and a trainer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.process import ServiceProcess, cpu_s, rss_mib
from benchmarks.role import RoleProcess
from earl.bus import Bus, EmbeddedValkey
from earl.config.run import RunConfig
from earl.rpc.client import Client
from earl.v1 import scheduler_pb2
from earl.v1.scheduler_pb2_grpc import SchedulerServiceStub

NAME = "bench-control"
RANKS = 8
STEPS = 1_000_000
RPC_S = 60.0


@dataclass(frozen=True, slots=True)
class ControlLoad:
    """The load: `workers` simulated workers in `processes` processes; each plays `credit` tickets at once,
    hold_s seconds each.

    A batch has batch_groups groups of group_size; up to staleness + 1 batches are in progress. environments:
    how many the run's mixture has, in equal shares; 1 is no mixture.
    """

    workers: int
    processes: int
    credit: int
    hold_s: float = 0.5
    group_size: int = 16
    batch_groups: int = 64
    staleness: int = 8
    evaluation: int = 2048
    checkpoint_every: int = 4
    environments: int = 1

    def config(self) -> RunConfig:
        return RunConfig.model_validate(
            {
                "name": NAME,
                **self._environments(),
                "scheduler": {
                    "group_size": self.group_size, "batch_groups": self.batch_groups,
                    "staleness": self.staleness, "steps": STEPS,
                },
                "evaluation": {"episodes": self.evaluation, "at_end": False},
                "trainer": {"checkpoint_every": self.checkpoint_every},
                "warmup": {"batches": 0},
            }
        )  # fmt: skip

    def _environments(self) -> dict[str, Any]:
        if self.environments == 1:
            return {"environment": {"name": "bench/none", "task": {"level": 1}}}
        names = [f"bench/none-{number}" for number in range(self.environments)]
        return {"environments": [{"name": name, "task": {"level": 1}} for name in names]}


class BenchProcesses:
    """The started processes."""

    def __init__(self, valkey: EmbeddedValkey, scheduler: ServiceProcess, client: Client, bus: Bus) -> None:
        self.bus = bus
        self.players: list[RoleProcess] = []
        self.trainer: RoleProcess
        self._valkey = valkey
        self._scheduler = scheduler
        self._client = client

    async def status(self) -> scheduler_pb2.GetStatusResponse:
        """The scheduler's answer as it came: an OperatorClient would make values of thousands of workers."""
        return await self._client.call("GetStatus", scheduler_pb2.GetStatusRequest(), deadline_s=RPC_S)

    async def durability(self, fsync: str) -> None:
        """Sets Valkey's appendfsync."""
        await self.bus.redis.config_set("appendfsync", fsync)

    async def play(self, **how: Any) -> None:
        """See Players.play."""
        await asyncio.gather(*(role.ask(do="play", **how) for role in self.players))

    @property
    def rss_mib(self) -> dict[str, float]:
        return {name: round(rss_mib(pid), 1) for name, pid in self._measured.items()}

    @property
    def cpu_s(self) -> dict[str, float]:
        """Processor time so far, by kind of process."""
        used = {name: cpu_s(pid) for name, pid in self._measured.items()}
        used["players"] = sum(cpu_s(role.process.pid) for role in self.players)
        return {**used, "trainer": cpu_s(self.trainer.process.pid)}

    @property
    def _measured(self) -> dict[str, int]:
        return {"scheduler": self._scheduler.pid, "valkey": self._valkey.pid}


@asynccontextmanager
async def started(
    directory: Path, load: ControlLoad, profile: Path | None = None
) -> AsyncIterator[BenchProcesses]:
    """Starts the processes. profile: a file that the scheduler writes its stack samples to when it ends."""
    config = load.config()
    run = _run_file(directory, config)
    async with AsyncExitStack() as stack:
        valkey = EmbeddedValkey()
        url = await valkey.start(directory / "valkey")
        stack.push_async_callback(valkey.stop)
        bus = await Bus.connect(url, NAME, source="benchmark")
        stack.push_async_callback(bus.close)
        module = f"benchmarks.control.profiled {profile}" if profile else "services.scheduler"
        scheduler = await ServiceProcess.start(module, run, "scheduler", EARL_REDIS_URL=url)
        stack.push_async_callback(scheduler.stop)
        client = Client(scheduler.address, SchedulerServiceStub)
        stack.push_async_callback(client.close)
        made = BenchProcesses(valkey, scheduler, client, bus)
        # What the scheduler will ask of so many.
        heartbeat_s = max(config.scheduler.heartbeat_s, load.workers / config.scheduler.heartbeats_per_s)
        lease_s = config.scheduler.lease_s
        each = load.workers // load.processes
        for number in range(load.processes):
            role, _ = await RoleProcess.start(
                "benchmarks.control.players", role="players", address=scheduler.address, first=number * each,
                count=each, credit=load.credit, heartbeat_s=heartbeat_s, renew_s=lease_s / 3,
            )  # fmt: skip
            stack.push_async_callback(role.stop)
            made.players.append(role)
        made.trainer, _ = await RoleProcess.start(
            "benchmarks.control.trainer", role="trainer", address=scheduler.address, redis_url=url, run=NAME,
            ranks=RANKS, heartbeat_s=config.scheduler.heartbeat_s,
        )  # fmt: skip
        stack.push_async_callback(made.trainer.stop)
        for role in made.players:
            await role.ask(do="start")
        yield made


def _run_file(directory: Path, config: RunConfig) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "run.json"
    path.write_text(config.model_dump_json())
    return path
