"""The resources of every check: the host, one environment of it, and the means to judge it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from earl.env.conformance.host_link import HostLink
from earl.env.conformance.offered_tools import tools_of
from earl.env.conformance.plan import ExamPlan
from earl.env.conformance.play import EpisodeBounds, EpisodePlayer, EpisodeTrace


@dataclass(slots=True)
class Bench:
    """A host under test.

    pid: of its process, 0 if not known. another: a second process that serves the same, None if none can
    be started. terminate: sends SIGTERM and gives the exit code within a bound, None if it cannot be sent.
    """

    link: HostLink
    plan: ExamPlan
    pid: int = 0
    another: Callable[[], AbstractAsyncContextManager[HostLink]] | None = None
    terminate: Callable[[], Any] | None = None


@dataclass(slots=True)
class Subject:
    """One environment of the host. traces: episodes of the random policy, seed by seed, once played."""

    bench: Bench
    info: Any
    traces: list[EpisodeTrace] = field(default_factory=list)
    # All of them, those that nothing is compared with included.
    played: list[EpisodeTrace] = field(default_factory=list)
    deterministic: bool = False
    # Names of the checks that were run.
    attempted: set[str] = field(default_factory=set)
    # Episodes of the leak check, done and planned.
    leak_episodes: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        return tools_of(self.info)

    @property
    def player(self) -> EpisodePlayer:
        plan = self.bench.plan
        bounds = EpisodeBounds(plan.reset_s, plan.step_s, plan.max_steps)
        return EpisodePlayer(self.bench.link, self.name, plan.task, bounds)
