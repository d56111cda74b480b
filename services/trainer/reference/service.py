"""A rank of the reference stage: starts the parts in order, stops them in reverse.

group ─► policy ─► bus, data plane, arena ─► rank 0: server, membership ─► bus followed ─► loop
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from earl.bus import Bus
from earl.bus.published import last_published
from earl.config.reference import reference_bytes
from earl.config.run import RunConfig
from earl.dispatch.memory.arena_growth import arena_growth
from earl.models.spec import load_spec
from services.trainer.api.servicer import StageServicer
from services.trainer.ranks.requests import StageRequests
from services.trainer.ranks.runtime import settle_reference
from services.trainer.ranks.switch_requests import SwitchRequests
from services.trainer.reference.logprob_store import LogprobStore
from services.trainer.reference.mesh import make_reference_mesh
from services.trainer.reference.origin import Origin
from services.trainer.reference.parallelism_change import check_reference_mesh
from services.trainer.reference.policy import ReferencePolicy
from services.trainer.reference.rank import ReferenceRank
from services.trainer.reference.rank0 import ReferenceRank0
from services.trainer.stage.rank_resources import CLOSE_S, OPEN_S, RankProcess, RankResources
from services.trainer.stage.stage_rank0 import StageRank0


def serve(config: RunConfig, run_dir: Path, name: str, requests: StageRequests) -> None:
    """Runs one rank until the run has ended or `requests.stop` is set. Raises EarlError for what failed."""
    reference = config.reference
    settle_reference(config)
    spec = load_spec(run_dir / "model")
    with ExitStack() as stack:
        process = RankProcess(stack, reference.device)
        group, io = process.group, process.io
        mesh = make_reference_mesh(group, reference.dp, reference.tp)
        policy = ReferencePolicy(spec, mesh.tensor, group.device, config)
        resources = RankResources(stack, process, config, run_dir, name, requests)
        size_bytes = reference.arena_bytes or 2 * reference_bytes(config, config.planned_context)
        longest_bytes = 0 if reference.arena_bytes else 2 * reference_bytes(config, config.context_tokens)
        store = io.run(resources.open_store(size_bytes, arena_growth(longest_bytes)), OPEN_S)
        stack.callback(lambda: io.run(store.close(), CLOSE_S))
        logprobs, origin = LogprobStore(store), Origin.of(config, run_dir)
        after = io.run(resources.bus.last_id(), OPEN_S)
        rank0 = None
        if group.leads:
            switches = SwitchRequests(
                mesh.parallelism, lambda parallelism: check_reference_mesh(parallelism, group.size, spec)
            )
            rank0 = _serve_rank0(resources, switches, origin, after)
        io.spawn(_follow(resources.bus, after, logprobs, rank0))
        rank = ReferenceRank(resources, mesh, policy, logprobs, origin, rank0)
        if rank0 is not None:
            rank0.stage.announce()
        rank.run()
        group.close()


def _serve_rank0(
    resources: RankResources, switches: SwitchRequests, origin: Origin, after: str
) -> ReferenceRank0:
    """Rank 0, knowing what was published so far. after: id of the bus's last event before it was followed."""
    stage = StageRank0(resources, "reference", switches)
    rank0 = ReferenceRank0(resources, stage, origin)
    servicer = StageServicer(resources.activity, stage.scheduler, switches)
    membership = stage.serve(servicer, resources.config.reference.bind)
    rank0.published(membership.version, membership.weight_keys)
    before = resources.io.run(last_published(resources.bus, until=after), OPEN_S)
    if before is not None:
        rank0.published(*before)
    return rank0


async def _follow(bus: Bus, after: str, logprobs: LogprobStore, rank0: ReferenceRank0 | None) -> None:
    """Frees the log-probs of what was trained or dropped, and tells rank 0 of publications. Never returns."""
    async for _, event in bus.follow(after):
        fact = event.WhichOneof("fact")
        if fact == "batch_committed":
            await logprobs.free(event.batch_committed.descriptor_keys)
        elif fact == "weights_published" and rank0 is not None:
            published = event.weights_published
            rank0.published(published.version, published.descriptor_keys)
