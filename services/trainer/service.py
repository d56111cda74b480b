"""A trainer rank from its configuration: starts the parts in order, stops them in reverse.

    formation ─► group ─► mesh ─► policy ─► arena ─► parameters ─► loop ─► (the next formation)
                   └─ the first time: bus, data plane, on rank 0 also server and membership: they stay

A process that is no rank of a formation waits for the next one (ranks/formations.py).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from earl.config.deadlines import load_seconds
from earl.config.run import RunConfig
from earl.models.spec import ModelSpec, load_spec
from earl.parallelism import TRAINER, Parallelism
from earl.stack.device_split import device_split
from services.trainer.api.servicer import TrainerServicer
from services.trainer.checkpoint.frozen_weights import OPPONENTS, VERSIONS, FrozenWeights, frozen_bytes
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.publish.weight_slots import WeightSlots, arena_bytes, largest_slot_bytes
from services.trainer.rank0 import TrainerRank0
from services.trainer.ranks.formations import Formation, Formations
from services.trainer.ranks.phase_clock import SwitchPhase
from services.trainer.ranks.rank_mesh import RankMesh, check_rank_mesh
from services.trainer.ranks.requests import StageRequests
from services.trainer.ranks.runtime import settle
from services.trainer.ranks.switch_requests import SwitchRequests
from services.trainer.reshard.trainer_state import canary_logprobs
from services.trainer.stage.formed_process import (
    FormedProcess,
    possible_ranks,
    work_in_formations,
)
from services.trainer.stage.rank_resources import CLOSE_S, OPEN_S, RankResources
from services.trainer.stage.stage_rank0 import StageRank0
from services.trainer.step.step import Stepper
from services.trainer.trainer import TrainerRank


def serve(config: RunConfig, run_dir: Path, name: str, requests: StageRequests) -> None:
    """Runs one rank until the run has ended or `requests.stop` is set. Raises EarlError for what failed."""
    settle(config)
    first = device_split(config, run_dir)[TRAINER]
    formations = Formations.open(first, pooled=config.stack.pool_devices > 0)
    with ExitStack() as stack:
        formed = FormedProcess(stack, config.trainer.device, config, run_dir, name, requests)
        work_in_formations(formations, requests, FormedTrainer(formed).work)


class FormedTrainer:
    """One process of the trainer, a rank of some formations."""

    def __init__(self, formed: FormedProcess) -> None:
        self._formed, self._config = formed, formed.config
        self._spec = load_spec(formed.run_dir / "model")
        self._stage: StageRank0 | None = None

    def work(self, formation: Formation) -> Parallelism | None:
        """Works as a rank of a formation until that ends; returns the parallelism of the ranks that take
        over, None if the trainer ends with it. Rank 0's answer counts."""
        config, spec, formed = self._config, self._spec, self._formed
        group = formed.group(formation)
        with ExitStack() as formation_stack:
            with formed.phase(SwitchPhase.MODEL):
                mesh = RankMesh(group, formation.parallelism, spec)
                stepper = Stepper(ShardedPolicy.of(spec, mesh, config), config)
                resources = formed.resources(group)
            with formed.phase(SwitchPhase.MEMORY):
                slots = _open_slots(resources, stepper)
            formation_stack.callback(slots.close)
            rank0 = TrainerRank0(resources, self._lead(resources, mesh)) if group.leads else None
            rank = TrainerRank(resources, stepper, slots, rank0, _open_frozen(resources, spec))
            with formed.phase(SwitchPhase.LOADING):
                rank.load()
            following = formed.takes_over(
                formation, group, mesh.parallelism, lambda: canary_logprobs(stepper)
            )
            if following is None:
                with formed.phase(SwitchPhase.PUBLISHING):
                    rank.start()
                formed.started(rank0.stage if rank0 is not None else None)
                rank.run()
                formed.reform = rank.reform
                following = rank.reform.target if rank.reform is not None else None
        group.close()
        return following

    def _lead(self, resources: RankResources, mesh: RankMesh) -> StageRank0:
        """Rank 0's server and membership; opened the first time."""
        if self._stage is None:
            switches = SwitchRequests(mesh.parallelism, self._check)
            self._stage = StageRank0(resources, "trainer", switches)
            activity, requests = resources.activity, resources.requests
            servicer = TrainerServicer(activity, self._stage.scheduler, switches, requests)
            self._stage.serve(servicer, self._config.trainer.bind)
        return self._stage

    def _check(self, parallelism: Parallelism) -> None:
        """Raises IllegalParallelism for what the trainer cannot become."""
        assert self._stage is not None
        ranks = possible_ranks(parallelism, self._stage.parallelism.devices, self._config, TRAINER)
        check_rank_mesh(parallelism, ranks, self._spec)


def _open_frozen(resources: RankResources, spec: ModelSpec) -> FrozenWeights | None:
    """The earlier versions that tickets name; None if they name none."""
    config, io, store = resources.config, resources.io, None
    schedule, dtype = config.kept, config.model.weight_dtype
    if schedule is None:
        return None
    if resources.group.leads:
        store = io.run(resources.open_store(frozen_bytes(spec, schedule, dtype)), OPEN_S)
        resources.stack.callback(lambda: io.run(store.close(), CLOSE_S))
    directory = resources.run_dir / (OPPONENTS if config.frozen is not None else VERSIONS)
    return FrozenWeights(schedule, directory, dtype, resources.group, io, store)


def _open_slots(resources: RankResources, stepper: Stepper) -> WeightSlots:
    config, io, group = resources.config, resources.io, resources.group
    spec, dtype = stepper.policy.spec, config.model.weight_dtype
    # As large as the ranks need in any parallelism: a switch allocates nothing.
    capacity_bytes = largest_slot_bytes(spec, group.rank, group.size, dtype)
    fraction = config.data_plane.changes_fraction
    size_bytes = max(config.trainer.arena_bytes, arena_bytes(capacity_bytes, fraction))
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
        changes_fraction=fraction,
    )
