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
from earl.errors import ConfigError, IllegalParallelism
from earl.models.return_pages import return_pages
from earl.models.spec import ModelSpec, load_spec
from earl.parallelism import Parallelism
from earl.stack.device_split import device_split
from services.trainer.api.servicer import TrainerServicer
from services.trainer.checkpoint.frozen_weights import FrozenWeights, frozen_bytes
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.publish.weight_slots import WeightSlots, arena_bytes, largest_slot_bytes
from services.trainer.rank0 import TrainerRank0
from services.trainer.ranks.formations import Formation, Formations
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.rank_mesh import RankMesh, check_rank_mesh
from services.trainer.ranks.requests import StageRequests
from services.trainer.ranks.runtime import settle
from services.trainer.ranks.switch_requests import SwitchRequests
from services.trainer.reform import Reform, stands
from services.trainer.stage.rank_resources import CLOSE_S, OPEN_S, RankProcess, RankResources
from services.trainer.stage.stage_rank0 import StageRank0
from services.trainer.step.step import Stepper
from services.trainer.trainer import TrainerRank


def serve(config: RunConfig, run_dir: Path, name: str, requests: StageRequests) -> None:
    """Runs one rank until the run has ended or `requests.stop` is set. Raises EarlError for what failed."""
    settle(config)
    formations = Formations.open(_first(config, run_dir), pooled=config.stack.pool_devices > 0)
    with ExitStack() as stack:
        process = FormedTrainer(stack, config, run_dir, name, requests)
        while (formation := formations.next(requests.stop)) is not None:
            if formations.rank < formation.parallelism.devices:
                following = process.work(formation)
                return_pages()
                formations.ended(following)


def _first(config: RunConfig, run_dir: Path) -> Parallelism:
    """The parallelism that the trainer begins with. Raises ConfigError."""
    given, ranks = config.trainer.parallelism, device_split(config, run_dir).trainer
    first = given.over(ranks)
    if first is None:
        raise ConfigError(
            f"{ranks} devices cannot be split into replicas of {Parallelism(1, *given.replica)}",
            "remove devices.json from the run: it then begins with the division of its run file",
        )
    return first


class FormedTrainer:
    """One process of the trainer, a rank of some formations. stack: closes what outlives them."""

    def __init__(
        self, stack: ExitStack, config: RunConfig, run_dir: Path, name: str, requests: StageRequests
    ) -> None:
        self._stack, self._config, self._run_dir = stack, config, run_dir
        self._name, self._requests = name, requests
        self._spec = load_spec(run_dir / "model")
        self._resources: RankResources | None = None
        self._stage: StageRank0 | None = None
        # On rank 0: the change of ranks that led to the formation, until its outcome is told.
        self._reform: Reform | None = None

    def work(self, formation: Formation) -> Parallelism | None:
        """Works as a rank of a formation until that ends; returns the parallelism of the ranks that take
        over, None if the trainer ends with it. Rank 0's answer counts."""
        config, spec = self._config, self._spec
        with ExitStack() as formed:
            process = None
            if self._resources is None:
                process = RankProcess(self._stack, config.trainer.device, formation.group)
            group = Group(config.trainer.device, formation.group) if process is None else process.group
            mesh = RankMesh(group, formation.parallelism, spec)
            stepper = Stepper(ShardedPolicy.of(spec, mesh, config), config)
            resources = self._resources_in(group, process)
            slots = _open_slots(resources, stepper)
            formed.callback(slots.close)
            rank0 = TrainerRank0(resources, self._lead(resources, mesh)) if group.leads else None
            rank = TrainerRank(resources, stepper, slots, rank0, _open_frozen(resources, spec))
            rank.load()
            following = self._start(formation, rank, stepper, rank0)
            if following is None:
                rank.run()
                self._reform = rank.reform
                following = rank.reform.target if rank.reform is not None else None
        group.close()
        return following

    def _start(
        self, formation: Formation, rank: TrainerRank, stepper: Stepper, rank0: TrainerRank0 | None
    ) -> Parallelism | None:
        """Begins to work as the ranks of a formation, unless these compute something else than those before:
        then returns the parallelism of those, who take over again. A collective."""
        if formation.number > 1:
            self._reform, stays = stands(stepper, self._reform)
            if not stays:
                return self._reform.target if self._reform is not None else formation.parallelism
        rank.start()
        if rank0 is not None and self._reform is not None:
            rank0.stage.end_switch(self._reform.command, self._reform.outcome())
        elif rank0 is not None:
            rank0.stage.announce()
        self._reform = None
        return None

    def _resources_in(self, group: Group, process: RankProcess | None) -> RankResources:
        """The resources of this process, in this group; opened the first time, with `process`."""
        if self._resources is not None:
            self._resources.join(group)
            return self._resources
        assert process is not None
        self._resources = RankResources(
            self._stack, process, self._config, self._run_dir, self._name, self._requests
        )
        return self._resources

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
        ranks, most = self._stage.parallelism.devices, self._config.trainer_processes
        if self._config.stack.pool_devices and parallelism.devices != ranks:
            if parallelism.devices > most:
                raise IllegalParallelism(
                    f"{parallelism} has {parallelism.devices} ranks, and the trainer {most} processes",
                    "rollout keeps the devices of one engine at least",
                )
            ranks = parallelism.devices
        check_rank_mesh(parallelism, ranks, self._spec)


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
