"""A rank of the reference stage: starts the parts in order, stops them in reverse.

    group ─► policy ─► bus, arena, dispatcher ─► rank 0: server, membership ─► bus followed ─► loop

Promise: whatever fails, what was started is stopped; no arena file outlives the rank.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path

import torch

from earl.bus import Bus
from earl.bus.published import last_published
from earl.config.reference import reference_bytes
from earl.config.run import RunConfig
from earl.dispatch.memory.arena_file import arena_directory
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher
from earl.dispatch.registry.registry import Registry
from earl.models.spec import load_spec
from earl.parallelism import Parallelism
from earl.rpc.access import Access
from earl.rpc.audit import AUDIT_FILE, Audit
from earl.rpc.main import announce
from earl.rpc.peers import peer
from earl.rpc.token_file import Role
from earl.scheduler_client import RETRY_S, SchedulerClient
from services.trainer.api.metrics import serve_figures
from services.trainer.ranks.activity import Activity
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.requests import StageRequests
from services.trainer.ranks.switch_requests import Epochs
from services.trainer.reference.lead import SLACK_S, Lead
from services.trainer.reference.origin import Origin
from services.trainer.reference.place import make_reference_mesh
from services.trainer.reference.policy import ReferencePolicy
from services.trainer.reference.recut import check_reference_mesh
from services.trainer.reference.shelf import Shelf
from services.trainer.reference.worker import ReferenceRank
from services.trainer.service import CLOSE_S


def serve(config: RunConfig, run_dir: Path, name: str, requests: StageRequests) -> None:
    """Runs one rank until the run is over or `requests.stop` is set. Raises EarlError for what failed."""
    redis_url, scheduler = peer("EARL_REDIS_URL"), peer("EARL_SCHEDULER")
    reference = config.reference
    torch.set_num_threads(reference.threads)
    spec = load_spec(run_dir / "model")
    with ExitStack() as stack:
        side = IoThread()
        stack.callback(side.close)
        group = Group(reference.device)
        place = make_reference_mesh(group, reference.dp, reference.tp)
        policy = ReferencePolicy(
            spec,
            place.tensor,
            group.device,
            config.trainer.dtype or config.model.dtype,
            temperature=config.scheduler.temperature,
            microbatch_tokens=reference.microbatch_tokens,
            deterministic=config.deterministic,
            share_prefixes=config.trainer.share_prefixes,
        )
        bus = side.run(
            Bus.connect(redis_url, config.name, source=name, stream_events=config.bus.stream_events),
            RETRY_S,
        )
        stack.callback(lambda: side.run(bus.close(), CLOSE_S))
        registry = Registry(bus.redis, bus.prefix, config.data_plane.descriptor_lease_s)
        opening = TensorStore.open(
            registry,
            config.data_plane,
            arena_directory(config.data_plane, run_dir),
            f"{name}-{group.rank}",
            incarnation=secrets.randbits(64),
            size_bytes=reference.arena_bytes or 2 * reference_bytes(config),
        )
        store = side.run(opening, RETRY_S)
        stack.callback(lambda: side.run(store.close(), CLOSE_S))
        dispatcher = side.run(Dispatcher.create(registry, config.data_plane), RETRY_S)
        stack.callback(lambda: side.run(dispatcher.close(), CLOSE_S))
        activity, shelf, origin = Activity(), Shelf(store), Origin.of(config, run_dir)
        after = side.run(bus.last_id(), RETRY_S)
        lead = None
        address = metrics = ""
        if group.leads:
            epochs = Epochs(place.parallelism, lambda wanted: check_reference_mesh(wanted, group.size, spec))
            access = Access.of(Role.WORKER)
            link = _link(config, name, scheduler, access, side, stack)
            lead = Lead(config, side, link, activity, requests, origin, epochs)
            audit = Audit(run_dir / AUDIT_FILE, name)
            server, address = side.run(lead.start(access.tls, audit), RETRY_S + SLACK_S)
            stack.callback(lambda: side.run(server.stop(), CLOSE_S))
            metrics = serve_figures(
                config.obs.metrics, "reference", side, server, activity, access.tls, stack
            )
            stack.callback(lambda: epochs.close("the reference stage left"))
            before = side.run(last_published(bus, until=after), RETRY_S)
            if before is not None:
                lead.published(*before)
            side.spawn(lead.heartbeats())
        side.spawn(_follow(bus, after, shelf, lead))
        stage = ReferenceRank(
            config,
            run_dir,
            place=place,
            side=side,
            policy=policy,
            shelf=shelf,
            dispatcher=dispatcher,
            activity=activity,
            origin=origin,
            lead=lead,
        )
        if group.leads:
            announce(name, address, metrics)
        stage.run()
        group.close()


def _link(
    config: RunConfig, name: str, scheduler: str, access: Access, side: IoThread, stack: ExitStack
) -> SchedulerClient:
    parallelism = Parallelism(config.reference.dp, config.reference.tp)

    async def connect() -> SchedulerClient:
        # gRPC's channels belong to the loop that they are made on.
        return SchedulerClient(
            scheduler,
            access,
            stage="reference",
            name=name,
            incarnation=secrets.randbits(64),
            capacity=parallelism.devices,
            parallelism=parallelism,
        )

    link = side.run(connect(), RETRY_S)
    stack.callback(lambda: side.run(link.close(), CLOSE_S))
    return link


async def _follow(bus: Bus, after: str, shelf: Shelf, lead: Lead | None) -> None:
    """For ever: what was trained or dropped is freed, and rank 0 learns of publications."""
    async for _, event in bus.follow(after):
        fact = event.WhichOneof("fact")
        if fact == "batch_committed":
            await shelf.free(event.batch_committed.descriptor_keys)
        elif fact == "weights_published" and lead is not None:
            published = event.weights_published
            lead.published(published.version, published.descriptor_keys)
