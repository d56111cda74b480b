"""A rank of a frozen model's stage: starts the parts in order, stops them in reverse.

    formation ─► group ─► policy ─► (weights) ─► loop ─► (the next formation)
                   └─ the first time: bus, data plane, arena, on rank 0 also server and membership; they stay

A process that is no rank of a formation waits for the next one (ranks/formations.py).
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from earl.bus import Bus
from earl.bus.published import last_published
from earl.config.column_bytes import column_bytes
from earl.config.run import RunConfig
from earl.dispatch.memory.arena_growth import arena_growth
from earl.errors import IllegalParallelism
from earl.models.scorer import load_scorer_spec
from earl.models.spec import ModelSpec, load_spec
from earl.parallelism import REFERENCE, REWARD_MODEL, Parallelism
from earl.stack.device_split import device_split
from services.trainer.api.servicer import StageServicer
from services.trainer.ranks.formations import Formation, Formations
from services.trainer.ranks.phase_clock import SwitchPhase
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.requests import StageRequests
from services.trainer.ranks.runtime import settle_frozen
from services.trainer.ranks.switch_requests import SwitchRequests
from services.trainer.reference.logprob_store import LogprobStore
from services.trainer.reference.mesh import ReferenceMesh, make_reference_mesh
from services.trainer.reference.origin import Origin
from services.trainer.reference.outputs import LogprobOutput, ScoreOutput, StageOutput
from services.trainer.reference.parallelism_change import check_reference_mesh
from services.trainer.reference.policy import FrozenPolicy, ReferencePolicy
from services.trainer.reference.rank import ReferenceRank
from services.trainer.reference.rank0 import ReferenceRank0
from services.trainer.reference.scorer import FrozenScorer
from services.trainer.stage.formed_process import FormedProcess, possible_ranks, work_in_formations
from services.trainer.stage.rank_resources import CLOSE_S, OPEN_S, RankResources
from services.trainer.stage.stage_rank0 import StageName, StageRank0


def serve_role(role: StageName, config: RunConfig, run_dir: Path, name: str, requests: StageRequests) -> None:
    """Runs one rank until the run has ended or needs the role no more, or `requests.stop` is set.

    Raises EarlError for what failed.
    """
    section = config.frozen_stage(role)
    settle_frozen(config, section.threads)
    pooled = config.stack.pool_devices > 0
    first = device_split(config, run_dir)[role] if pooled else Parallelism(section.dp, section.tp)
    formations = Formations.open(first, pooled=pooled)
    with ExitStack() as stack:
        served = role not in config.frozen_models
        device = "cpu" if served else section.device
        formed = FormedProcess(stack, device, config, run_dir, name, requests)
        work_in_formations(formations, requests, FormedReference(formed, role, served=served).work)


serve = partial(serve_role, REFERENCE)


class FormedReference:
    """One process of a role's stage, a rank of some formations.

    Its log-probs stay in its arena, and are freed, while it is no rank too.
    """

    def __init__(self, formed: FormedProcess, role: StageName, *, served: bool = False) -> None:
        """served: another server has the policy, and this process asks it."""
        self._served = served
        self._formed, self._config = formed, formed.config
        self._role: StageName = role
        self._origin = Origin.of(formed.config, formed.run_dir, role)
        self._scores = role == REWARD_MODEL
        self._spec = (load_scorer_spec if self._scores else load_spec)(self._origin.model)
        # None in a stage that makes no column.
        self._logprobs: LogprobStore | None = None
        self._opened = False
        self._rank0: ReferenceRank0 | None = None

    def work(self, formation: Formation) -> Parallelism | None:
        """Works as a rank of a formation until that ends; returns the parallelism of the ranks that take
        over, None if the stage ends with it. Rank 0's answer counts."""
        formed = self._formed
        group = formed.group(formation)
        with formed.phase(SwitchPhase.MODEL):
            mesh = make_reference_mesh(group, formation.parallelism.dp, formation.parallelism.tp)
            policy = self._local(mesh, group)
            resources = formed.resources(group)
        self._open(resources, mesh)
        if policy is None:
            policy = _served_policy(resources, self._spec)
        rank0 = self._rank0
        rank = ReferenceRank(
            resources, mesh, policy, self._output(resources), self._origin, rank0, self._role
        )
        with formed.phase(SwitchPhase.LOADING):
            rank.load()
        following = formed.takes_over(formation, group, mesh.parallelism, rank.canary_logprobs)
        if following is None:
            formed.started(rank0.stage if rank0 is not None else None)
            rank.run()
            formed.reform = rank.reform
            following = rank.reform.target if rank.reform is not None else None
        group.close()
        return following

    def _local(self, mesh: ReferenceMesh, group: Group) -> ReferencePolicy | None:
        """This rank's slices of the frozen model; None if a server has it."""
        if self._served:
            return None
        make = FrozenScorer if self._scores else ReferencePolicy
        return make(self._spec, mesh.tensor, group.device, self._config, self._role)

    def _output(self, resources: RankResources) -> StageOutput:
        if self._logprobs is None:
            return ScoreOutput(resources.group)
        return LogprobOutput(resources.group, resources.io, self._logprobs, self._role)

    def _open(self, resources: RankResources, mesh: ReferenceMesh) -> None:
        """Opens this process's log-probs, and on rank 0 its server and membership; the first time."""
        if self._opened:
            return
        self._opened, io = True, resources.io
        if not self._scores:
            self._logprobs = self._open_logprobs(resources)
        after = io.run(resources.bus.last_id(), OPEN_S)
        if resources.group.leads:
            switches = SwitchRequests(mesh.parallelism, self._check)
            self._rank0 = _serve_rank0(resources, switches, self._origin, after, self._role)
        io.spawn(_follow(resources.bus, after, self._logprobs, self._rank0))

    def _open_logprobs(self, resources: RankResources) -> LogprobStore:
        config, io = self._config, resources.io
        given = config.column_stage(self._role).arena_bytes
        size_bytes = given or 2 * column_bytes(config, config.planned_context)
        longest_bytes = 0 if given else 2 * column_bytes(config, config.context_tokens)
        store = io.run(resources.open_store(size_bytes, arena_growth(longest_bytes)), OPEN_S)
        resources.stack.callback(lambda: io.run(store.close(), CLOSE_S))
        return LogprobStore(store, self._role)

    def _check(self, parallelism: Parallelism) -> None:
        """Raises IllegalParallelism for what the stage cannot become."""
        assert self._rank0 is not None
        if self._served:
            raise IllegalParallelism(
                f"{parallelism} for a {self._role} that another server serves: no rank here computes with it",
                "change the parallelism of the server",
            )
        ranks = self._rank0.stage.parallelism.devices
        ranks = possible_ranks(parallelism, ranks, self._config, self._role)
        check_reference_mesh(parallelism, ranks, self._spec)


def _served_policy(resources: RankResources, spec: ModelSpec) -> FrozenPolicy:
    """The policy that another server has. It is closed with the resources."""
    # No other stage needs an HTTP client.
    from services.trainer.reference.served import ServedPolicy

    policy = ServedPolicy(resources, spec)
    resources.stack.callback(policy.close)
    return policy


def _serve_rank0(
    resources: RankResources, switches: SwitchRequests, origin: Origin, after: str, role: StageName
) -> ReferenceRank0:
    """Rank 0, knowing what was published so far. after: id of the bus's last event before it was followed."""
    stage = StageRank0(resources, role, switches)
    rank0 = ReferenceRank0(resources, stage, origin, role)
    servicer = StageServicer(resources.activity, stage.scheduler, switches)
    membership = stage.serve(servicer, resources.config.frozen_stage(role).bind)
    rank0.published(membership.version, membership.weight_keys)
    before = resources.io.run(last_published(resources.bus, until=after), OPEN_S)
    if before is not None:
        rank0.published(*before)
    return rank0


async def _follow(bus: Bus, after: str, logprobs: LogprobStore | None, rank0: ReferenceRank0 | None) -> None:
    """Frees the log-probs of what was trained or dropped, and tells rank 0 of publications. Never returns."""
    async for _, event in bus.follow(after):
        fact = event.WhichOneof("fact")
        if fact == "batch_committed" and logprobs is not None:
            await logprobs.free(event.batch_committed.descriptor_keys)
        elif fact == "weights_published" and rank0 is not None:
            published = event.weights_published
            rank0.published(published.version, published.descriptor_keys)
