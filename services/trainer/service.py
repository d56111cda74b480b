"""A trainer rank from its configuration: starts the parts in order, stops them in reverse.

    group ─► cut ─► policy ─► bus, arena, dispatcher ─► rank 0: server, membership ─► parameters ─► loop

Promise: whatever fails, what was started is stopped; no arena file outlives the rank.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from earl.bus import Bus
from earl.config.run import RunConfig
from earl.dispatch.memory.arena_file import arena_directory
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher
from earl.dispatch.registry.registry import Registry
from earl.models.spec import load_spec
from earl.rpc.access import Access
from earl.rpc.audit import AUDIT_FILE, Audit
from earl.rpc.main import announce
from earl.rpc.peers import peer
from earl.rpc.token_file import Role
from earl.scheduler_client import RETRY_S, SchedulerClient
from services.trainer.api.metrics import serve_figures
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.rank0 import SLACK_S, Lead
from services.trainer.ranks.activity import Activity
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.rank_mesh import RankMesh, check_rank_mesh
from services.trainer.ranks.requests import StageRequests
from services.trainer.ranks.runtime import settle
from services.trainer.ranks.switch_requests import Epochs
from services.trainer.reshard.weight_slots import WeightSlots, arena_bytes
from services.trainer.step.step import Stepper
from services.trainer.trainer import TrainerRank

log = logging.getLogger(__name__)

CLOSE_S = 10.0


def serve(config: RunConfig, run_dir: Path, name: str, requests: StageRequests) -> None:
    """Runs one rank until the run is over or `requests.stop` is set. Raises EarlError for what failed."""
    redis_url, scheduler = peer("EARL_REDIS_URL"), peer("EARL_SCHEDULER")
    settle(config)
    spec = load_spec(run_dir / "model")
    with ExitStack() as stack:
        side = IoThread()
        stack.callback(side.close)
        group = Group(config.trainer.device)
        cut = RankMesh(group, config.trainer.parallelism, spec)
        policy = ShardedPolicy.of(spec, cut, config)
        stepper = Stepper(policy, config)
        bus = side.run(
            Bus.connect(redis_url, config.name, source=name, stream_events=config.bus.stream_events),
            RETRY_S,
        )
        stack.callback(lambda: side.run(bus.close(), CLOSE_S))
        registry = Registry(bus.redis, bus.prefix, config.data_plane.descriptor_lease_s)

        def open_store(size_bytes: int) -> Coroutine[Any, Any, TensorStore]:
            return TensorStore.open(
                registry,
                config.data_plane,
                arena_directory(config.data_plane, run_dir),
                f"{name}-{group.rank}",
                incarnation=secrets.randbits(64),
                size_bytes=size_bytes,
            )

        size_bytes = config.trainer.arena_bytes or arena_bytes(policy.model_shards, config.model.dtype)
        dispatcher = side.run(Dispatcher.create(registry, config.data_plane), RETRY_S)
        stack.callback(lambda: side.run(dispatcher.close(), CLOSE_S))
        slots = WeightSlots(
            side,
            side.run(open_store(size_bytes), RETRY_S),
            registry,
            bus,
            group,
            policy,
            name=name,
            dtype=config.model.dtype,
            lease_s=2 * config.data_plane.read_s,
            hurry=requests.stop,
            open_store=open_store,
        )
        stack.callback(slots.close)
        activity = Activity()
        lead = None
        address = metrics = ""
        if group.leads:
            epochs = Epochs(cut.parallelism, lambda wanted: check_rank_mesh(wanted, group.size, spec))
            audit = Audit(run_dir / AUDIT_FILE, name)
            lead, address, metrics = _lead(
                config, name, scheduler, epochs, side, activity, requests, audit, stack
            )
        trainer = TrainerRank(
            config,
            run_dir,
            group=group,
            side=side,
            stepper=stepper,
            slots=slots,
            dispatcher=dispatcher,
            activity=activity,
            requests=requests,
            lead=lead,
        )
        trainer.start()
        if group.leads:
            announce(name, address, metrics)
        trainer.run()
        group.close()


def _lead(
    config: RunConfig,
    name: str,
    scheduler: str,
    epochs: Epochs,
    side: IoThread,
    activity: Activity,
    requests: StageRequests,
    audit: Audit,
    stack: ExitStack,
) -> tuple[Lead, str, str]:
    """It, and where it and its metrics are served."""
    access = Access.of(Role.WORKER)

    async def connect() -> SchedulerClient:
        # gRPC's channels belong to the loop that they are made on.
        return SchedulerClient(
            scheduler,
            access,
            stage="trainer",
            name=name,
            incarnation=secrets.randbits(64),
            capacity=epochs.parallelism.devices,
            parallelism=epochs.parallelism,
        )

    link = side.run(connect(), RETRY_S)
    stack.callback(lambda: side.run(link.close(), CLOSE_S))
    lead = Lead(config, side, link, activity, requests, epochs)
    server, address = side.run(lead.start(access.tls, audit), RETRY_S + SLACK_S)
    stack.callback(lambda: side.run(server.stop(), CLOSE_S))
    metrics = serve_figures(config.obs.metrics, "trainer", side, server, activity, access.tls, stack)
    stack.callback(lambda: epochs.close("the trainer left"))
    side.spawn(lead.heartbeats())
    return lead, address, metrics
