"""A process of a stage whose ranks may change: a rank of some formations, and of none in between.

    formation ─► group ─► (the stage: mesh, policy) ─► resources ─► (weights) ─► stands? ─► works ─► the next
                   │                                       │           no: the former ranks ─────────►
                   └─ the first time: I/O thread           └─ the first time: bus, data plane; they stay

Promise: what others reach a process by, its arenas and on rank 0 its server and membership, stays open from
one formation to the next, also while the process is no rank: what it computed can still be read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from earl.config.device_pool import most_devices
from earl.config.run import RunConfig
from earl.errors import IllegalParallelism
from earl.models.return_pages import return_pages
from earl.parallelism import Parallelism
from services.trainer.ranks.formations import Formation, Formations
from services.trainer.ranks.phase_clock import SwitchPhase
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.requests import StageRequests
from services.trainer.stage.rank_resources import RankProcess, RankResources
from services.trainer.stage.reform import Canaries, Reform, stands
from services.trainer.stage.stage_rank0 import StageRank0


class FormedProcess:
    """A process of a stage, with all that it keeps from one formation to the next.

    stack: closes it. device: "auto", "cpu" or "cuda". reform: the change of ranks that led to the present
    formation, or leads to the next one, as far as this process knows it.
    """

    def __init__(
        self,
        stack: ExitStack,
        device: str,
        config: RunConfig,
        run_dir: Path,
        name: str,
        requests: StageRequests,
    ) -> None:
        self.stack, self.config, self.run_dir = stack, config, run_dir
        self.reform: Reform | None = None
        self._device, self._name, self._requests = device, name, requests
        self._process: RankProcess | None = None
        self._resources: RankResources | None = None

    def phase(self, phase: SwitchPhase) -> AbstractContextManager[None]:
        """Counts the block's seconds for the change of ranks that is in progress, if there is one."""
        return nullcontext() if self.reform is None else self.reform.clock.phase(phase)

    def group(self, formation: Formation) -> Group:
        """Joins the group of a formation; whoever works in it closes it. A collective."""
        if self._process is not None:
            with self.phase(SwitchPhase.GROUPS):
                return Group(self._device, formation.group)
        self._process = RankProcess(self.stack, self._device, formation.group)
        return self._process.group

    def resources(self, group: Group) -> RankResources:
        """The resources of this process, in this group; opened the first time. A collective.

        Raises as RankResources.
        """
        if self._resources is not None:
            self._resources.join(group)
            return self._resources
        assert self._process is not None
        self._resources = RankResources(
            self.stack, self._process, self.config, self.run_dir, self._name, self._requests
        )
        return self._resources

    def takes_over(
        self, formation: Formation, group: Group, present: Parallelism, canaries: Canaries
    ) -> Parallelism | None:
        """Returns None if the ranks of a formation, which have loaded, stay; else the parallelism of those
        before, who take over again, because these compute something else. A collective."""
        if formation.number == 1:
            return None
        with self.phase(SwitchPhase.CANARIES_AFTER):
            self.reform, stays = stands(group, present, canaries, self.reform)
        if stays:
            return None
        return self.reform.target if self.reform is not None else present

    def started(self, stage: StageRank0 | None) -> None:
        """Tells that the formation works: the outcome of the change that led to it, or that the stage is
        ready. stage: on rank 0."""
        if stage is not None and self.reform is not None:
            stage.end_switch(self.reform.command, self.reform.outcome())
        elif stage is not None:
            stage.announce()
        self.reform = None


def work_in_formations(
    formations: Formations, requests: StageRequests, work: Callable[[Formation], Parallelism | None]
) -> None:
    """Works as a rank of every formation that has this process, until the last one has ended.

    work: returns the parallelism of the ranks that take over, None for none; rank 0's answer counts.
    """
    while (formation := formations.next(requests.stop)) is not None:
        if formations.rank < formation.parallelism.devices:
            following = work(formation)
            return_pages()
            formations.ended(following)


def possible_ranks(parallelism: Parallelism, ranks: int, config: RunConfig, stage: str) -> int:
    """The ranks that a stage of so many has in another parallelism: as many, unless it draws on a pool.

    Raises IllegalParallelism where it has fewer processes.
    """
    if not config.stack.pool_devices:
        return ranks
    processes = most_devices(config, stage)
    if parallelism.devices > processes:
        raise IllegalParallelism(
            f"{parallelism} has {parallelism.devices} ranks, and the {stage} {processes} processes",
            "every other stage of the pool keeps the devices of one replica",
        )
    return parallelism.devices
