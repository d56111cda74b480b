"""Builds a rollout service from its configuration: starts its parts in order, stops them in reverse.

    bus ─► arena ─► engines ─► gateway ─► own server ─► worker (until stopped)

Promise: when a part fails to start, the parts before it are stopped again; no engine process and no arena
file outlives the service.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from earl.bus import Bus
from earl.bus.reader_leases import ReaderLeases
from earl.config.deadlines import load_seconds, start_seconds
from earl.config.device_pool import most_devices
from earl.config.run import RunConfig
from earl.dispatch.memory.arena_file import arena_directory
from earl.dispatch.memory.arena_growth import arena_growth
from earl.dispatch.publish.sequence_store import SequenceStore
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.registry.registry import Registry
from earl.env.base import Limits
from earl.env.session import GatewayClient
from earl.episode_contract import published_columns
from earl.models.spec import load_spec
from earl.models.tokenizer import Tokenizer
from earl.obs.tracing import exporting
from earl.parallelism import ROLLOUT
from earl.rpc.access import Access
from earl.rpc.audit import AUDIT_FILE, Audit
from earl.rpc.main import announce
from earl.rpc.metrics_endpoint import MetricsEndpoint
from earl.rpc.options import COMMAND_BYTES
from earl.rpc.peers import advertised_address, peer
from earl.rpc.server import Server
from earl.rpc.token_file import Role
from earl.rpc.tokens import tokens_to_accept
from earl.scheduler_client import SchedulerClient
from earl.stack.device_split import device_split
from earl.v1.rollout_pb2_grpc import add_RolloutServiceServicer_to_server
from services.rollout.api.servicer import RolloutServicer
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.process.client import EngineProcess
from services.rollout.engines.process.rank_process import RankKind
from services.rollout.episode import columns
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.episode.tokenizer_cache import TokenizerCache
from services.rollout.pool.devices import PoolDevices
from services.rollout.pool.host_copy import HostCopy
from services.rollout.pool.pool import EnginePool
from services.rollout.pool.standby import StandbyProcesses
from services.rollout.worker.actions import AgentBounds
from services.rollout.worker.agent import EpisodeAgent
from services.rollout.worker.draft_history import DraftHistory
from services.rollout.worker.frozen_opponent import FrozenOpponent
from services.rollout.worker.gauges import Gauges
from services.rollout.worker.host_wait import HostWait
from services.rollout.worker.leases import Leases
from services.rollout.worker.metrics import figures
from services.rollout.worker.pinned_weights import PinnedWeights
from services.rollout.worker.planned_layouts import PlannedLayouts
from services.rollout.worker.weight_follower import WeightFollower
from services.rollout.worker.worker import RolloutWorker, WorkerResources

SERVICE = "earl.v1.RolloutService"
MEMBERSHIPS = 3


@dataclass(frozen=True, slots=True)
class PeerAddresses:
    """Addresses of the other services, and the credentials for them; from the environment."""

    redis_url: str
    scheduler: str
    gateway: str
    access: Access

    @classmethod
    def from_environment(cls) -> PeerAddresses:
        """The addresses in this process's environment.

        Raises ConfigError naming the variable that is missing.
        """
        values = [peer(name) for name in ("EARL_REDIS_URL", "EARL_SCHEDULER", "EARL_GATEWAY")]
        return cls(*values, access=Access.of(Role.WORKER))


def pool_devices(
    config: RunConfig, run_dir: Path, name: str, redis_url: str, stop_ids: frozenset[int]
) -> PoolDevices:
    """The devices of worker `name`, and what the engines on them are like."""
    rollout = config.rollout
    base = EngineSpec(
        name=name,
        model_dir=str(run_dir / "model"),
        engine=rollout.engine,
        python=rollout.engine_python,
        tp=rollout.tp,
        device=rollout.device,
        threads=rollout.threads or 1,
        dtype=config.rollout_dtype,
        max_sequences=rollout.max_sequences,
        max_context_tokens=config.context_tokens,
        kv_tokens=rollout.kv_tokens,
        deterministic=config.exact_kernels,
        kv_on_update=rollout.kv_on_update,
        drafts=bool(rollout.drafts),
        stop_ids=tuple(sorted(stop_ids)),
        stop_texts=tuple(config.model.stop_texts),
        load_initial=False,
        sleeps=config.alternates,
        redis_url=redis_url,
        run=config.name,
        data_plane=config.data_plane.model_dump_json(),
        arena_dir=str(arena_directory(config.data_plane, run_dir)),
        paced=config.paced.model_dump_json() if config.paced.table else "",
    )
    spec = load_spec(base.model_dir)
    start_s = start_seconds(config, spec.size_bytes(config.model.weight_dtype))
    base = msgspec.structs.replace(base, start_s=start_s)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    shared_gpus = len(visible.split(",")) if config.stack.share and visible else 0
    most = most_devices(config, ROLLOUT) if config.stack.pool_devices else 0
    begins = device_split(config, run_dir)[ROLLOUT] if config.stack.pool_devices else None
    return PoolDevices(base, rollout.engines, spec, shared_gpus, most=most, begins=begins)


def standby_processes(config: RunConfig, devices: PoolDevices) -> StandbyProcesses | None:
    """The processes that a worker keeps ready for its next engines, one for each device that those may have
    beside the present ones; None for none, and where its devices allow no other parallelism. Raises
    EngineNotInstalled."""
    replaced = devices.initial.devices if len(devices.legal) > 1 else 0
    count = max(replaced, devices.most - devices.initial.devices)
    if not config.keeps_standby or not count:
        return None
    return StandbyProcesses(RankKind.of(devices.base), count)


async def serve(config: RunConfig, run_dir: Path, name: str, stop: asyncio.Event) -> None:
    """Runs one rollout worker until `stop` is set or the run ends. Raises EarlError for what failed."""
    addresses = PeerAddresses.from_environment()
    access = addresses.access
    config = as_divided(config, run_dir)
    async with AsyncExitStack() as stack:
        stack.enter_context(exporting(config.obs.traces, name, config.name))
        resources = await _open_resources(stack, config, run_dir, name, addresses)
        worker = RolloutWorker(config, resources, bounded_leases(config))
        server = Server(
            name,
            config.rollout.bind,
            tokens=tokens_to_accept(),
            tls=access.tls,
            drain_s=1.0,
            request_bytes=COMMAND_BYTES,
            audit=Audit(run_dir / AUDIT_FILE, name),
        )
        server.add(add_RolloutServiceServicer_to_server, RolloutServicer(worker, resources), SERVICE)
        address = await server.start()
        stack.push_async_callback(server.stop)
        metrics = MetricsEndpoint(
            config.obs.metrics,
            [server.calls.samples, lambda: figures(worker, resources.gauges, resources.agent)],
            tokens=tokens_to_accept(),
            tls=access.tls,
        )
        stack.push_async_callback(metrics.close)
        announce(name, address, await metrics.start())
        await worker.run(advertised_address(address), stop)


def as_divided(config: RunConfig, run_dir: Path) -> RunConfig:
    """The run file with as many of its engines as rollout's part of the pool holds, whatever those that it
    begins with are. Raises ConfigError."""
    if not config.stack.pool_devices:
        return config
    engines = max(1, device_split(config, run_dir)[ROLLOUT].devices // config.rollout.tp)
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"engines": engines})})


def capacity(config: RunConfig) -> int:
    """Episodes that one worker plays at once, at most: a match of self-play is one of them.

    Without rollout.episodes, as many as its engines hold contexts if each has the fewest seats. An evaluation
    plays one.
    """
    least = 1 if config.evaluation.episodes else min(entry.contexts for entry in config.mixture)
    return config.rollout.episodes or max(1, _contexts(config) // least)


def bounded_leases(config: RunConfig) -> Leases:
    """The empty leases of a worker.

    Only one seat of a match acts at a time, but engines keep the context of each between its turns: with
    more contexts than they hold, every turn would compute its context again. So a match takes a context for
    each of its seats at the engines that play them, unless the run file says how many episodes are played.
    """
    contexts = 0 if config.rollout.episodes else _contexts(config)
    return Leases(capacity(config), contexts, max(entry.seats for entry in config.mixture))


def _contexts(config: RunConfig) -> int:
    return config.rollout.engines * config.rollout.max_sequences


async def _open_resources(
    stack: AsyncExitStack, config: RunConfig, run_dir: Path, name: str, addresses: PeerAddresses
) -> WorkerResources:
    """Opens what a worker works with, the engines started; all of it is closed with the stack."""
    access = addresses.access
    tokenizer = Tokenizer.load(run_dir / "model", config.model)
    incarnation = secrets.randbits(64)
    bus = await Bus.connect(
        addresses.redis_url,
        config.name,
        source=name,
        stream_events=config.bus.stream_events,
        outage_s=config.bus.outage_s,
    )
    stack.push_async_callback(bus.close)
    owned, store = await _open_store(stack, bus, config, run_dir, name, incarnation)
    devices = pool_devices(config, run_dir, name, addresses.redis_url, tokenizer.stop_ids)
    reader_leases = ReaderLeases(bus, name)
    load_s = load_seconds(config, devices.model.size_bytes(config.model.weight_dtype))
    standby = standby_processes(config, devices)
    pool = EnginePool(
        devices,
        EngineProcess if standby is None else partial(EngineProcess, take=standby.take),
        standby=standby,
        reading=reader_leases.hold,
        copy=HostCopy(devices.base),
        restarts=config.rollout.engine_restarts,
        load_s=load_s,
        # Only the selector orders the switch that a long context waits for.
        waits=config.selects_layouts,
        asleep=config.alternates,
    )
    stack.push_async_callback(pool.stop)
    await pool.start()
    opponent = _opponent(config, devices)
    if opponent is not None:
        stack.push_async_callback(opponent.stop)
    gateway = GatewayClient(addresses.gateway, token=access.token, tls=access.tls)
    stack.push_async_callback(gateway.close)
    spans = BusySpans()
    awake_time = pool.time if config.alternates else None
    bounds = episode_bounds(config, run_dir, tokenizer)
    history = DraftHistory(set(config.rollout.drafts)) if config.rollout.drafts else None
    rejoined = asyncio.Event()
    scheduler = SchedulerClient(
        addresses.scheduler,
        access,
        stage="rollout",
        name=name,
        incarnation=incarnation,
        capacity=capacity(config),
        parallelism=devices.initial,
        heartbeat_s=config.scheduler.heartbeat_s,
        retry_s=MEMBERSHIPS * config.scheduler.membership_s,
        outage_s=config.bus.outage_s,
        on_rejoin=rejoined.set,
    )
    stack.push_async_callback(scheduler.close)
    pinned = _pinned_weights(config, pool, spans, scheduler)
    if pinned is not None:
        stack.push_async_callback(pinned.stop)
    agent = EpisodeAgent(pool, gateway, spans, bounds, opponent, awake_time, history, pinned)
    gauges = Gauges(pool, agent, spans, tokenizer.unknown_words, opponent)
    stack.push_async_callback(gauges.close)
    wait_s: dict[str, float] = {}
    for entry in config.mixture:
        wait_s[entry.name] = max(entry.section.wait_s, wait_s.get(entry.name, 0.0))
    allowed: dict[str, list[str]] = {}
    for entry in config.mixture:
        if entry.section.tools:
            allowed.setdefault(entry.name, []).extend(entry.section.tools)
    seats = {entry.name: entry.seats for entry in config.mixture if entry.seats > 1}
    hosts = HostWait(gateway, wait_s, seats, allowed)
    weights = pinned or WeightFollower(pool, reader_leases, spans, lease_s=2 * load_s)
    return WorkerResources(
        scheduler, bus, store, pool, agent, gauges, weights, rejoined, hosts, opponent, owned.unserved
    )


def _pinned_weights(
    config: RunConfig, pool: EnginePool, spans: BusySpans, scheduler: SchedulerClient
) -> PinnedWeights | None:
    """The weights of a run whose tickets are pinned to versions, each in the layout that the plan has."""
    if config.pinned is None:
        return None
    layouts, plan = None, config.layout_plan
    if plan is not None:
        layouts = PlannedLayouts(pool, plan, config.switch, scheduler.report_switch)
    return PinnedWeights(pool, config.pinned, spans, layouts)


def _opponent(config: RunConfig, devices: PoolDevices) -> FrozenOpponent | None:
    """The opponent of a run that trains against frozen versions, on engines like the worker's own."""
    if config.frozen is None:
        return None
    base = msgspec.structs.replace(devices.base, name=f"{devices.base.name}/frozen")
    engines = EnginePool(
        replace(devices, base=base),
        EngineProcess,
        restarts=config.rollout.engine_restarts,
        load_s=load_seconds(config, devices.model.size_bytes(config.model.weight_dtype)),
        copy=HostCopy(base),
    )
    return FrozenOpponent(engines, config.frozen)


def episode_bounds(config: RunConfig, run_dir: Path, tokenizer: Tokenizer) -> dict[str, AgentBounds]:
    """The bounds of each environment's episodes by its label. tokenizer: with the system message of [model].

    Environments with one system message share a cache of tokenized texts.
    """
    caches = {config.model.system: TokenizerCache(tokenizer)}
    bounds: dict[str, AgentBounds] = {}
    for entry in config.mixture:
        if entry.system not in caches:
            prompts = config.model.model_copy(update={"system": entry.system})
            caches[entry.system] = TokenizerCache(Tokenizer.load(run_dir / "model", prompts))
        section = entry.section
        bounds[entry.label] = AgentBounds(
            Limits(section.queue_s, section.reset_s, section.step_s),
            entry.max_context_tokens,
            entry.max_new_tokens,
            caches[entry.system],
            config.scheduler.turn_s,
            config.scheduler.timeout == "truncate",
            entry.rewards,
            tuple(section.tools),
            section.demonstration_key,
        )
    return bounds


async def _open_store(
    stack: AsyncExitStack, bus: Bus, config: RunConfig, run_dir: Path, name: str, incarnation: int
) -> tuple[TensorStore, SequenceStore]:
    """Opens the store of the worker's arena, closed with the stack, and that of its trajectories there."""
    given = config.rollout.arena_bytes
    store = await TensorStore.open(
        Registry(bus.redis, bus.prefix, config.data_plane.descriptor_lease_s),
        config.data_plane,
        arena_directory(config.data_plane, run_dir),
        name,
        incarnation=incarnation,
        size_bytes=given or columns.arena_bytes(config, config.planned_context),
        grows_to=0 if given else arena_growth(columns.arena_bytes(config, config.context_tokens)),
    )
    stack.push_async_callback(store.close)
    published = published_columns(turn_rewards=config.trainer.turn_rewards)
    return store, store.sequences(columns.registry_key(name, incarnation), list(published.items()))
