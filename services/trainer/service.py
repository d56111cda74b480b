"""A trainer rank from its configuration: starts the parts in order, stops them in reverse.

group ─► mesh ─► policy ─► bus, data plane, arena ─► rank 0: server, membership ─► parameters ─► loop
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from earl.config.deadlines import load_seconds
from earl.config.run import RunConfig
from earl.models.spec import ModelSpec, load_spec
from services.trainer.api.servicer import TrainerServicer
from services.trainer.checkpoint.frozen_weights import FrozenWeights, frozen_bytes
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.publish.weight_slots import WeightSlots, arena_bytes, largest_slot_bytes
from services.trainer.rank0 import TrainerRank0
from services.trainer.ranks.rank_mesh import RankMesh, check_rank_mesh
from services.trainer.ranks.requests import StageRequests
from services.trainer.ranks.runtime import settle
from services.trainer.ranks.switch_requests import SwitchRequests
from services.trainer.stage.rank_resources import CLOSE_S, OPEN_S, RankProcess, RankResources
from services.trainer.stage.stage_rank0 import StageRank0
from services.trainer.step.step import Stepper
from services.trainer.trainer import TrainerRank


def serve(config: RunConfig, run_dir: Path, name: str, requests: StageRequests) -> None:
    """Runs one rank until the run has ended or `requests.stop` is set. Raises EarlError for what failed."""
    settle(config)
    spec = load_spec(run_dir / "model")
    with ExitStack() as stack:
        process = RankProcess(stack, config.trainer.device)
        group = process.group
        mesh = RankMesh(group, config.trainer.parallelism, spec)
        stepper = Stepper(ShardedPolicy.of(spec, mesh, config), config)
        resources = RankResources(stack, process, config, run_dir, name, requests)
        slots = _open_slots(resources, stepper)
        stack.callback(slots.close)
        rank0 = None
        if group.leads:
            switches = SwitchRequests(
                mesh.parallelism, lambda parallelism: check_rank_mesh(parallelism, group.size, spec)
            )
            stage = StageRank0(resources, "trainer", switches)
            servicer = TrainerServicer(resources.activity, stage.scheduler, switches, requests)
            stage.serve(servicer, config.trainer.bind)
            rank0 = TrainerRank0(resources, stage)
        frozen = _open_frozen(resources, spec)
        rank = TrainerRank(resources, stepper, slots, rank0, frozen)
        rank.start()
        if rank0 is not None:
            rank0.stage.announce()
        rank.run()
        group.close()


def _open_frozen(resources: RankResources, spec: ModelSpec) -> FrozenWeights | None:
    """The versions that the run trains against; None if it trains against none."""
    config, io, store = resources.config, resources.io, None
    schedule, dtype = config.frozen, config.model.weight_dtype
    if schedule is None:
        return None
    if resources.group.leads:
        store = io.run(resources.open_store(frozen_bytes(spec, schedule, dtype)), OPEN_S)
        resources.stack.callback(lambda: io.run(store.close(), CLOSE_S))
    return FrozenWeights(schedule, resources.run_dir, dtype, resources.group, io, store)


def _open_slots(resources: RankResources, stepper: Stepper) -> WeightSlots:
    config, io, group = resources.config, resources.io, resources.group
    spec, dtype = stepper.policy.spec, config.model.weight_dtype
    # As large as the ranks need in any parallelism: a switch allocates nothing.
    capacity_bytes = largest_slot_bytes(spec, group.rank, group.size, dtype)
    size_bytes = max(config.trainer.arena_bytes, arena_bytes(capacity_bytes))
    return WeightSlots(
        io,
        io.run(resources.open_store(size_bytes), OPEN_S),
        resources.registry,
        resources.bus,
        group,
        stepper.policy,
        name=resources.name,
        dtype=dtype,
        # Twice what a reader may take; a worker's lease ends then, too.
        lease_s=2 * load_seconds(config, spec.size_bytes(dtype)),
        hurry=resources.requests.stop,
        capacity_bytes=capacity_bytes,
    )
