"""The resources of every check: the host, one environment of it, and the means to judge it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from earl.env.conformance.host_link import HostLink
from earl.env.conformance.offered_tools import tools_of
from earl.env.conformance.plan import ExamPlan
from earl.env.conformance.play import EpisodeBounds, EpisodePlayer, EpisodeTrace

# Share of the time left for an environment that its leak check may take: others come after it.
LEAK_SHARE = 0.7


@dataclass(slots=True)
class Bench:
    """A host under test.

    pid: of its process, 0 if not known. another: a second process that serves the same, None if none can
    be started. terminate: sends SIGTERM and gives the exit code within a bound, None if it cannot be sent.
    ends: on the monotonic clock, when the examination is over. environments_left: the one that is examined
    and those after it.
    """

    link: HostLink
    plan: ExamPlan
    pid: int = 0
    another: Callable[[], AbstractAsyncContextManager[HostLink]] | None = None
    terminate: Callable[[], Any] | None = None
    ends: float = math.inf
    environments_left: int = 1

    def left_s(self) -> float:
        return max(0.0, self.ends - monotonic())

    def leak_s(self) -> float:
        """Seconds that a leak check may take that begins now."""
        return min(self.plan.leak_s, LEAK_SHARE * self.left_s() / self.environments_left)


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
        return self.player_of(1)

    def player_of(self, seats: int) -> EpisodePlayer:
        """Plays so many seats of every session."""
        plan = self.bench.plan
        bounds = EpisodeBounds(plan.reset_s, plan.step_s, plan.max_steps)
        return EpisodePlayer(self.bench.link, self.name, plan.task, bounds, seats)
