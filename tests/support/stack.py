"""The processes of a run under a test's control.

    async with Stack(config) as stack:
        await stack.up("valkey", "model", "scheduler", "gateway", "env-0")
        worker = await stack.start("rollout-0")
        ...
        code = await stack.terminate("rollout-0")

Every process but the model's job is the one that `earl train` starts (earl.stack.plan), with its own log
below the run's directory; it is forked with its imports unless the stack is `as_launched`. Leaving ends
whatever still runs; a process that ended when it should not have fails the test with the end of its log.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from earl.bus import Bus
from earl.config.run import RunConfig
from earl.dispatch.memory.arena_file import arena_directory
from earl.models.create import create_models
from earl.rpc.audit import AUDIT_FILE
from earl.stack import plan
from earl.stack.ports import resolve_bind
from earl.stack.process import StackProcess
from earl.v1.events_pb2 import Event
from tests.support.preloaded import preloaded

START_S = 60.0
END_S = 30.0


class Stack:
    """One run's directory and processes. config.runs_dir is where the directory is made.

    as_launched: processes are begun anew, as by `earl train`, not forked with their imports (`preloaded.py`):
    all, or those of these names. What such a process starts is begun anew, too.
    """

    def __init__(self, config: RunConfig, *, as_launched: bool | Collection[str] = False) -> None:
        self._as_launched = as_launched
        self.config = config.model_copy(
            update={
                "scheduler": config.scheduler.model_copy(
                    update={"bind": resolve_bind(config.scheduler.bind, "scheduler.bind")}
                ),
                "gateway": config.gateway.model_copy(
                    update={"bind": resolve_bind(config.gateway.bind, "gateway.bind")}
                ),
            }
        )
        self.directory = Path(config.runs_dir) / config.name
        (self.directory / "logs").mkdir(parents=True, exist_ok=True)
        self.run_json = self.directory / "run.json"
        self.run_json.write_text(self.config.model_dump_json(indent=1))
        self.arenas = arena_directory(self.config.data_plane, self.directory)
        specs = plan.plan(self.config, self.run_json)
        self.processes = {
            spec.name: StackProcess(spec, self.directory / "logs" / f"{spec.name}.log") for spec in specs
        }
        self.environment: dict[str, str] = {}
        self._buses: list[Bus] = []

    async def __aenter__(self) -> Stack:
        return self

    async def __aexit__(self, *_: object) -> None:
        for bus in self._buses:
            await bus.close()
        for name in reversed(self.processes):
            await self.kill(name)
        shutil.rmtree(self.arenas, ignore_errors=True)

    @property
    def redis_url(self) -> str:
        return self.config.bus.redis_url or self.processes[plan.VALKEY].address

    @property
    def scheduler(self) -> str:
        return self.config.scheduler.bind

    @property
    def gateway(self) -> str:
        return self.config.gateway.bind

    async def bus(self) -> Bus:
        """A connection to the run's bus, closed with the stack."""
        bus = await Bus.connect(self.redis_url, self.config.name, source="test")
        self._buses.append(bus)
        return bus

    async def up(self, *names: str) -> None:
        """Starts these, each as soon as those among them that it needs are ready (a job: done)."""
        starts: dict[str, asyncio.Task] = {}

        async def start(name: str) -> None:
            needs = self.processes[name].spec.needs
            await asyncio.gather(*(starts[need] for need in needs if need in starts))
            await self.start(name)

        async with asyncio.TaskGroup() as group:
            for name in names:
                starts[name] = group.create_task(start(name))

    async def start(self, name: str, environment: Mapping[str, str] | None = None) -> StackProcess:
        """Starts one process and waits until it is ready, or done if it is a job.

        The model's job is done here: what it imports takes a process a second, and this one has it.
        """
        process = self.processes[name]
        if name == plan.MODEL:
            create_models(self.directory, self.config)
            return process
        anew = self._as_launched
        with nullcontext() if anew is True or (anew and name in anew) else preloaded():
            await process.start(self._environment() | dict(environment or {}))
        ready, ended = asyncio.create_task(process.ready.wait()), asyncio.create_task(process.wait())
        try:
            await asyncio.wait([ready, ended], timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and process.spec.job and ended.result() == 0:
                return process
            assert ready.done(), f"{name} did not become ready:\n" + "\n".join(process.tail(40))
            return process
        finally:
            ready.cancel()
            ended.cancel()

    async def ended(self, name: str, timeout_s: float = END_S) -> int:
        """The exit code of a process that ends by itself."""
        process = self.processes[name]
        try:
            async with asyncio.timeout(timeout_s):
                return await process.wait()
        except TimeoutError:
            raise AssertionError(f"{name} still runs:\n" + "\n".join(process.tail(40))) from None

    async def terminate(self, name: str) -> int:
        """SIGTERM; the exit code."""
        self.processes[name].terminate()
        return await self.ended(name)

    async def kill(self, name: str) -> None:
        """SIGKILL to its process group, if it runs."""
        process = self.processes[name]
        if process.running:
            process.signal(signal.SIGKILL)
            await process.wait()

    def log(self, name: str) -> str:
        """All that the process said."""
        return self.processes[name].log.read_text(encoding="utf-8", errors="replace")

    def _environment(self) -> dict[str, str]:
        addresses = plan.StackAddresses(self.scheduler, self.gateway, self.redis_url)
        return {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **addresses.environment(),
            **self.environment,
        }


def audited(directory: Path, service: str) -> set[tuple[str, str]]:
    """(method, outcome) of every call that this service of a run wrote down."""
    calls = [json.loads(line) for line in (directory / AUDIT_FILE).read_text().splitlines()]
    return {
        (call["what"].rpartition("/")[2], call["outcome"]) for call in calls if call["service"] == service
    }


async def until(events: AsyncIterator[tuple[str, Event]], fact: str, timeout_s: float = 30.0) -> Any:
    """The next event of this kind of `Bus.follow`."""
    async with asyncio.timeout(timeout_s):
        async for _, event in events:
            if event.WhichOneof("fact") == fact:
                return getattr(event, fact)
    raise AssertionError("the bus ended")
