"""Every service of EARL, served in this process by the servers that its processes have, for tests that
call all of it: scheduler, gateway, rollout worker, trainer, an env host that listens.

The scheduler has a real bus and ledger, the worker's engines are not started and the trainer does not
train: what is called is what stands before those.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from earl.bus import Bus
from earl.bus.embedded import EmbeddedValkey
from earl.bus.reader_leases import ReaderLeases
from earl.config.run import RunConfig
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.registry.registry import Registry
from earl.env import EnvHost, Environment, StepResult
from earl.env.base import Observation
from earl.env.session import GatewayClient
from earl.episode_contract import SAMPLED_COLUMNS
from earl.models.create import create_model
from earl.models.tokenizer import Tokenizer
from earl.parallelism import Parallelism
from earl.rpc.access import OPEN
from earl.rpc.server import Server
from earl.rpc.tokens import AcceptedTokens
from earl.scheduler_client import SchedulerClient
from earl.v1.rollout_pb2_grpc import add_RolloutServiceServicer_to_server
from earl.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from services.env_gateway.api import servicer as gateway_servicer
from services.env_gateway.api.servicer import EnvGatewayServicer
from services.env_gateway.gateway import Gateway
from services.rollout import service as rollout_service
from services.rollout.api.servicer import RolloutServicer
from services.rollout.engines.process.client import EngineProcess
from services.rollout.episode import columns
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.pool.pool import EnginePool
from services.rollout.worker.agent import EpisodeAgent
from services.rollout.worker.gauges import Gauges
from services.rollout.worker.host_wait import HostWait
from services.rollout.worker.leases import Leases
from services.rollout.worker.weight_follower import WeightFollower
from services.rollout.worker.worker import RolloutWorker, WorkerResources
from services.scheduler.api import servicer as scheduler_servicer
from services.scheduler.api.servicer import SchedulerServicer
from services.scheduler.scheduler import Scheduler
from services.trainer.api import servicer as trainer_servicer
from services.trainer.ranks.activity import Activity
from services.trainer.ranks.requests import StageRequests
from services.trainer.ranks.switch_requests import SwitchRequests
from tests.support.runs import tictactoe

BIND = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Served:
    """addresses: by what serves there, "scheduler", "gateway", "rollout", "trainer" and "host"."""

    addresses: dict[str, str]
    bus: Bus


class Echo(Environment):
    """Ends with the first action."""

    name = "test/echo"

    def reset(self, seed, task):
        return Observation("say something")

    def step(self, action):
        return StepResult(Observation(action), 1.0, done=True)


@asynccontextmanager
async def all_services(directory: Path, tokens: AcceptedTokens) -> AsyncIterator[Served]:
    """All of them, until the end of the block. tokens: whom they let in."""
    config = tictactoe(directory)
    run_dir = directory / config.name
    create_model(run_dir / "model", config.model, config.seed)
    async with AsyncExitStack() as stack:

        def server(name: str) -> Server:
            made = Server(name, BIND, tokens=tokens, drain_s=0.0)
            stack.push_async_callback(made.stop)
            return made

        valkey = EmbeddedValkey()
        stack.push_async_callback(valkey.stop)
        bus = await Bus.connect(await valkey.start(run_dir / "valkey"), config.name)
        stack.push_async_callback(bus.close)
        addresses = {"scheduler": await _scheduler(stack, server("scheduler"), config, run_dir, bus)}
        addresses["gateway"] = await _gateway(stack, server("gateway"), config)
        addresses["rollout"] = await _rollout(stack, server("rollout"), config, run_dir, bus, addresses)
        addresses["trainer"] = await _trainer(stack, server("trainer"), addresses["scheduler"])
        addresses["host"] = await _host(stack, tokens)
        yield Served(addresses, bus)


async def _scheduler(
    stack: AsyncExitStack, server: Server, config: RunConfig, run_dir: Path, bus: Bus
) -> str:
    scheduler = await Scheduler.open(config, run_dir, bus)
    server.add(
        add_SchedulerServiceServicer_to_server, SchedulerServicer(scheduler), scheduler_servicer.SERVICE
    )
    stop = asyncio.Event()
    working = asyncio.create_task(scheduler.loop.run(stop))

    async def end() -> None:
        scheduler.loop.drain()
        stop.set()
        await working

    stack.push_async_callback(end)
    return await server.start()


async def _gateway(stack: AsyncExitStack, server: Server, config: RunConfig) -> str:
    servicer = EnvGatewayServicer(Gateway(config.gateway, asyncio.get_running_loop().time), 0.1)
    server.add(gateway_servicer.add_to_server, servicer, gateway_servicer.SERVICE)
    sweeping = asyncio.create_task(servicer.run())
    stack.callback(sweeping.cancel)
    return await server.start()


async def _rollout(
    stack: AsyncExitStack,
    server: Server,
    config: RunConfig,
    run_dir: Path,
    bus: Bus,
    addresses: dict[str, str],
) -> str:
    name = "rollout-0"
    tokenizer = Tokenizer.load(run_dir / "model", config.model)
    devices = rollout_service.pool_devices(config, run_dir, name, "", tokenizer.stop_ids)
    pool = EnginePool(devices, EngineProcess, restarts=0, load_s=1.0)
    scheduler = SchedulerClient(
        addresses["scheduler"],
        OPEN,
        stage="rollout",
        name=name,
        incarnation=1,
        capacity=1,
        parallelism=devices.initial,
        heartbeat_s=1.0,
        retry_s=1.0,
    )
    gateway = GatewayClient(addresses["gateway"])
    spans = BusySpans()
    agent = EpisodeAgent(pool, gateway, spans, rollout_service.episode_bounds(config, run_dir, tokenizer))
    gauges = Gauges(pool, agent, spans)
    store = await TensorStore.open(
        Registry(bus.redis, bus.prefix, config.data_plane.descriptor_lease_s),
        config.data_plane,
        run_dir / "arenas",
        name,
        incarnation=1,
        size_bytes=1 << 20,
    )
    for close in (store.close, gauges.close, gateway.close, scheduler.close, pool.stop):
        stack.push_async_callback(close)
    sequences = store.sequences(columns.registry_key(name, 1), list(SAMPLED_COLUMNS.items()))
    weights = WeightFollower(pool, ReaderLeases(bus, name), spans, lease_s=1.0)
    hosts = HostWait(gateway, {entry.name: 1.0 for entry in config.mixture})
    rejoined = asyncio.Event()
    resources = WorkerResources(scheduler, bus, sequences, pool, agent, gauges, weights, rejoined, hosts)
    worker = RolloutWorker(config, resources, Leases(1))
    server.add(
        add_RolloutServiceServicer_to_server, RolloutServicer(worker, resources), rollout_service.SERVICE
    )
    return await server.start()


async def _trainer(stack: AsyncExitStack, server: Server, scheduler: str) -> str:
    def legal(layout: Parallelism) -> None:
        pass

    client = SchedulerClient(
        scheduler, OPEN, stage="trainer", name="trainer", incarnation=1, capacity=1,
        parallelism=Parallelism(), heartbeat_s=1.0,
    )  # fmt: skip
    stack.push_async_callback(client.close)
    switches = SwitchRequests(Parallelism(), legal)
    stack.callback(switches.close, "the test is over")
    servicer = trainer_servicer.TrainerServicer(Activity(), client, switches, StageRequests())
    trainer_servicer.add_to(server, servicer)
    return await server.start()


async def _host(stack: AsyncExitStack, tokens: AcceptedTokens) -> str:
    stop, ready = asyncio.Event(), asyncio.Event()
    host = EnvHost("", Echo, 4, listen=BIND, name=f"host-{secrets.token_hex(2)}", accepts=tokens, drain_s=0.1)
    serving = asyncio.create_task(host.run(stop, ready.set))

    async def end() -> None:
        stop.set()
        await serving

    stack.push_async_callback(end)
    await ready.wait()
    return host.address
