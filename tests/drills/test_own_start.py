"""Services that nobody launches, as deploy/k8s starts them but as processes.

Each has a run file and its environment: off loopback, over TLS, with tokens, the trainer's ranks on two
nodes, tensors over the wire.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from earl.rpc import TlsFiles
from earl.rpc.access import Access
from earl.rpc.token_file import Role, make, write
from earl.rpc.tokens import TokenFile
from earl.stack.codec import OperatorClient
from earl.stack.plan import ProcessSpec
from earl.stack.ports import resolve_bind
from earl.stack.process import StackProcess
from earl.stack.rundir import to_toml
from tests.support.certificates import certified
from tests.support.runs import tictactoe

READY_S = 60.0


class OwnStart:
    """Processes by name, each with nothing but variables of its own. EARL_* of this process are hidden."""

    def __init__(self, directory: Path, common: dict[str, str]) -> None:
        self._directory = directory
        own = {name: value for name, value in os.environ.items() if not name.startswith("EARL_")}
        self._common = own | {"OMP_NUM_THREADS": "1"} | common
        self.processes: dict[str, StackProcess] = {}

    async def start(
        self,
        name: str,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
        *,
        ready: bool = True,
    ) -> StackProcess:
        process = StackProcess(ProcessSpec(name, tuple(arguments)), self._directory / f"{name}.log")
        self.processes[name] = process
        await process.start(self._common | dict(variables or {}))
        if ready:
            try:
                async with asyncio.timeout(READY_S):
                    await process.ready.wait()
            except TimeoutError:
                raise AssertionError(f"{name} is not ready:\n" + "\n".join(process.tail(30))) from None
        return process

    async def ended(self, name: str) -> int:
        async with asyncio.timeout(READY_S):
            return await self.processes[name].wait()

    async def kill(self) -> None:
        for process in self.processes.values():
            if process.running:
                process.signal(9)
                await process.wait()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_fleet_starts_from_a_run_file_and_its_environment(tmp_path: Path) -> None:
    config = tictactoe(
        tmp_path,
        environment={"serve": ""},
        trainer={"ranks": 2},
        data_plane={"bind": "0.0.0.0", "trusted_network": True, "transport": "ucx"},
    )
    file, tokens = tmp_path / "run.toml", tmp_path / "tokens.toml"
    file.write_text(to_toml(config.model_dump(mode="json")))
    entries = [make(role) for role in Role]
    write(tokens, entries)
    (tls_directory := tmp_path / "tls").mkdir()
    tls = certified(tls_directory)
    assert tls.certificate and tls.key and tls.authority
    scheduler, gateway = (resolve_bind("127.0.0.1:0", name) for name in ("scheduler", "gateway"))
    url = tmp_path / "redis_url"
    fleet = OwnStart(
        tmp_path,
        {
            "EARL_RUN_DIR": str(tmp_path / "shared"),
            "EARL_SCHEDULER": scheduler,
            "EARL_GATEWAY": gateway,
            "EARL_REDIS_URL_FILE": str(url),
            "EARL_TOKENS": str(tokens),
            "EARL_TLS_CERT": str(tls.certificate),
            "EARL_TLS_KEY": str(tls.key),
            "EARL_TLS_CA": str(tls.authority),
            "EARL_ADVERTISE": "127.0.0.1",
        },
    )
    run = ("--run", str(file))
    try:
        valkey = await fleet.start(
            "valkey", ("-m", "earl.stack.valkey", "--run", str(tmp_path / "v" / "run.json"))
        )
        url.write_text(valkey.address + "\n")
        await fleet.start("prepare", ("-m", "earl.stack.prepare", *run), ready=False)
        assert await fleet.ended("prepare") == 0
        bind = {"EARL_BIND": f"0.0.0.0:{scheduler.rpartition(':')[2]}"}
        await fleet.start("scheduler", ("-m", "services.scheduler", *run), bind)
        bind = {"EARL_BIND": f"0.0.0.0:{gateway.rpartition(':')[2]}"}
        await fleet.start("gateway", ("-m", "services.env_gateway", *run), bind)
        # An env host knows the environment's token and the authority, and nothing else.
        (secret := tmp_path / "environment_token").write_text(TokenFile(tokens).send(Role.ENVIRONMENT))
        hidden = {"EARL_TOKENS": "", "EARL_TLS_CERT": "", "EARL_TLS_KEY": "", "EARL_REDIS_URL_FILE": ""}
        hosted = ("-m", "earl.env.replica", "earl.env.adapters.open_spiel:environments", "--gateway", gateway)
        await fleet.start("env", hosted, hidden | {"EARL_TOKEN_FILE": str(secret)})
        trainer = ("-m", "services.trainer", *run)
        free = {"EARL_BIND": "0.0.0.0:0"}
        nodes = free | {"EARL_NODES": "2", "EARL_MASTER": resolve_bind("127.0.0.1:0", "master")}
        await fleet.start("node-1", trainer, nodes | {"EARL_NODE": "1"}, ready=False)
        await fleet.start("node-0", trainer, nodes | {"EARL_NODE": "0"})
        await fleet.start("rollout-0", ("-m", "services.rollout", *run), free)
        operator = next(entry.token for entry in entries if entry.role is Role.OPERATOR)
        client = OperatorClient(scheduler, Access(operator, TlsFiles(authority=tls.authority)))
        try:
            async with asyncio.timeout(150):
                while not (status := await client.status(10.0)).done:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
        finally:
            await client.close()
        ledger = status.ledger
        assert (ledger.trained, ledger.evaluated, ledger.dropped) == (48, 8, {})
        assert {path for worker in status.workers for path in worker.transfers} == {"ucx-tcp"}
        # Workers end by themselves once the run is over, both nodes of the trainer too.
        assert [await fleet.ended(name) for name in ("node-0", "node-1", "rollout-0")] == [0, 0, 0]
    except AssertionError:
        for name, process in fleet.processes.items():
            sys.stdout.write(f"--- {name}\n" + "\n".join(process.tail(15)) + "\n")
        raise
    finally:
        await fleet.kill()
