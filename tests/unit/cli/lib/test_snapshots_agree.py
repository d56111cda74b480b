"""Whoever only reads a run sends a viewer's token, and an operator's only where there is no viewer's: the
dashboard, `earl status`, `earl top`, `earl parallelism`, `earl env list`, `earl doctor`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from earl import errors
from earl.cli.env import listing
from earl.cli.lib.snapshot import RunMonitor, RunState
from earl.cli.machine.doctor import at_gateway
from earl.cli.show import parallelism
from earl.rpc import Server, token_file
from earl.rpc.auth import token_of
from earl.rpc.token_file import Entry, Role, make
from earl.rpc.tokens import TokenFile
from earl.stack import credentials
from earl.stack.rundir import RunDirectory
from earl.v1 import env_pb2, env_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from tests.support.dashboard import Served, config_of
from tests.support.recorded import recorded
from tests.support.runs import tictactoe

GATEWAY = "earl.v1.EnvGatewayService"
SCHEDULER = "earl.v1.SchedulerService"
ENTRIES = {role: make(role) for role in Role}


@dataclass
class Asked:
    """run: whose the services say they are. heard: (method, token) of every call that was let in."""

    address: str
    run: str
    heard: set[tuple[str, Role]]


class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    async def GetStatus(self, request, context):
        self._asked.heard.add(("GetStatus", whose(context)))
        return scheduler_pb2.GetStatusResponse(run=self._asked.run)

    async def ListTickets(self, request, context):
        self._asked.heard.add(("ListTickets", whose(context)))
        return scheduler_pb2.ListTicketsResponse()

    async def SetParallelism(self, request, context):
        self._asked.heard.add(("SetParallelism", whose(context)))
        return scheduler_pb2.SetParallelismResponse(epoch=1)


class Gateway(env_pb2_grpc.EnvGatewayServiceServicer):
    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    async def ListEnvironments(self, request, context):
        self._asked.heard.add(("ListEnvironments", whose(context)))
        return env_pb2.ListEnvironmentsResponse()

    async def ListHosts(self, request, context):
        self._asked.heard.add(("ListHosts", whose(context)))
        return env_pb2.ListHostsResponse()


def whose(context) -> Role:
    sent = token_of(context.invocation_metadata())
    return next(role for role, entry in ENTRIES.items() if entry.token.encode() == sent)


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    """Scheduler and gateway at one address, which know a token of every role."""
    token_file.write(tmp_path / "accepted.toml", ENTRIES.values())
    server = Server("test", "127.0.0.1:0", tokens=TokenFile(tmp_path / "accepted.toml"))
    found = Asked("", "test", set())
    server.add(scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, Scheduler(found), SCHEDULER)
    server.add(env_pb2_grpc.add_EnvGatewayServiceServicer_to_server, Gateway(found), GATEWAY)
    found.address = await server.start()
    yield found
    await server.stop()


@pytest.fixture
def holding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """This process has tokens of these roles, and no other."""

    def hold(*entries: Entry) -> None:
        token_file.write(tmp_path / "own.toml", entries)
        for name in credentials.VARIABLES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("EARL_TOKENS", str(tmp_path / "own.toml"))

    return hold


def ran(directory: Path) -> None:
    directory.mkdir()
    recorded(directory, steps=2)


@asynccontextmanager
async def page(directory: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The dashboard has looked at everything once."""
    ran(directory)
    asked.run = config_of(directory).name
    monkeypatch.setenv("EARL_SCHEDULER", asked.address)
    monkeypatch.setenv("EARL_GATEWAY", asked.address)
    async with Served(directory) as served:
        _, cookie = await served.enter()
        reader, writer = await served.ask(f"/api/runs/{directory.name}/stream", cookie)
        while await reader.readline() != b"event: tickets\n":
            pass
        yield
        writer.close()


@pytest.mark.parametrize(
    ("had", "shown"),
    [
        ((Role.OPERATOR, Role.WORKER, Role.VIEWER), Role.VIEWER),
        ((Role.VIEWER,), Role.VIEWER),
        ((Role.OPERATOR,), Role.OPERATOR),
    ],
)
async def test_the_dashboard_looks_as_a_viewer(had, shown, asked, holding, tmp_path, monkeypatch):
    holding(*(ENTRIES[role] for role in had))
    async with page(tmp_path / "run", asked, monkeypatch):
        names = ("GetStatus", "ListTickets", "ListEnvironments", "ListHosts")
        assert asked.heard == {(name, shown) for name in names}


@pytest.mark.parametrize("shown", [Role.VIEWER, Role.OPERATOR])
async def test_commands_look_as_a_viewer(shown, asked, holding, tmp_path):
    holding(ENTRIES[shown])
    monitor = RunMonitor.of_fleet(asked.address, asked.address)
    snapshot = await monitor.snapshot()
    await monitor.close()
    assert snapshot.state is RunState.RUNNING and not snapshot.silent
    assert asked.heard == {(name, shown) for name in ("GetStatus", "ListTickets", "ListEnvironments")}
    config = tictactoe(tmp_path, scheduler={"bind": asked.address})
    with RunDirectory(config, resume=False) as directory:
        directory.write(config, config)
        arguments = ["--run", str(directory.path), "--json"]
        said = await asyncio.to_thread(CliRunner().invoke, parallelism.app, arguments)
    assert json.loads(said.output)["run"] == "test", said.output
    asked.heard.clear()
    await asyncio.to_thread(listing.list_, asked.address, True)
    assert (await at_gateway(asked.address, "")).facts == {"gateway": asked.address, "hosts": {}}
    assert asked.heard == {("ListEnvironments", shown)}


async def test_a_stage_is_pinned_as_an_operator_though_looks_are_a_viewers(asked, holding):
    holding(*ENTRIES.values())
    monitor = RunMonitor.of_fleet(asked.address, asked.address)
    await monitor.snapshot()
    asked.heard.clear()
    await monitor.pin("trainer", pin=True, deadline_s=10.0)
    await monitor.close()
    assert asked.heard == {("SetParallelism", Role.OPERATOR)}


async def test_a_viewer_changes_nothing(asked, holding, tmp_path):
    holding(ENTRIES[Role.VIEWER])
    config = tictactoe(tmp_path, scheduler={"bind": asked.address})
    with RunDirectory(config, resume=False) as directory:
        directory.write(config, config)
        arguments = ["pin", "rollout", "--run", str(directory.path)]
        said = await asyncio.to_thread(CliRunner().invoke, parallelism.app, arguments)
    assert isinstance(said.exception, errors.ConfigError) and "no operator token" in str(said.exception)
    holding(ENTRIES[Role.WORKER])
    monitor = RunMonitor.of_fleet(asked.address, "")
    snapshot = await monitor.snapshot()
    await monitor.close()
    assert "no viewer or operator token" in snapshot.silent["scheduler"]
