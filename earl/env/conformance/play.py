"""Playing episodes: with a policy or with given actions, and the outcome as a trace to compare."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from earl.env.base import Action, Ending
from earl.env.conformance import policies
from earl.env.conformance.host_link import Episode, HostLink
from earl.errors import DeadlineExceeded, EnvHostLost

# (observation as earl.v1.Observation, number of the step from 0) → the action; None: stop here.
Policy = Callable[[Any, int], Action | None]
View = Mapping[str, Any]


@dataclass(slots=True)
class EpisodeTrace:
    """One episode. views[0]: of the reset; views[i]: of acts[i - 1]. reset_s, steps_s: how long they took."""

    seed: int
    views: list[View] = field(default_factory=list)
    acts: list[Action] = field(default_factory=list)
    reset_s: float = 0.0
    steps_s: list[float] = field(default_factory=list)
    # The last one, as earl.v1.Observation.
    observation: Any = None

    def note(self, result: Any) -> None:
        self.views.append(view_of(result))
        self.observation = result.observation

    @property
    def last(self) -> View:
        return self.views[-1]

    @property
    def return_(self) -> float:
        return sum(float(view["reward"]) for view in self.views)

    def return_of(self, seat: int) -> float:
        """Sum of a seat's rewards, where several are played."""
        return sum(float(view["rewards"][seat]) for view in self.views if view["rewards"])

    @property
    def ended(self) -> bool:
        """Returns whether it ended by its own rules or bounds."""
        return self.last["ending"] in (Ending.OK.name, Ending.TRUNCATED.name)

    @property
    def failed(self) -> str:
        """Returns how the environment failed in it, "" if it did not."""
        failed = self.last["done"] and not self.ended
        return f"{self.last['ending']}: {self.last['message']}" if failed else ""


def view_of(result: Any) -> View:
    """Converts an earl.v1.Result to the plain values that an agent and a trainer see."""
    observation = result.observation
    known = {ending.value: ending.name for ending in Ending}
    return {
        "text": observation.text,
        "legal_actions": list(observation.legal_actions),
        "tool_results": [(result.id, result.text, result.is_error) for result in observation.tool_results],
        "role": observation.role,
        "seat": observation.seat,
        "reward": repr(result.reward),
        "rewards": [repr(reward) for reward in result.seat_rewards],
        "done": result.done,
        "ending": known.get(result.ending, str(result.ending)),
        "metrics": _readable(result.metrics),
        "seat_metrics": [_readable(seat.metrics) for seat in result.seat_metrics],
        "message": result.message,
    }


def _readable(metrics: Mapping[str, float]) -> dict[str, str]:
    return {key: repr(value) for key, value in sorted(metrics.items())}


def difference(first: EpisodeTrace, other: EpisodeTrace) -> str:
    """Returns where two traces part, in words; "" if they are the same. What a failure says may differ."""
    for number, (a, b) in enumerate(zip(first.views, other.views, strict=False)):
        for key in a:
            if a[key] != b[key] and not (key == "message" and a["done"]):
                where = "the reset" if number == 0 else f"step {number}"
                return f"{key} of {where} with seed {first.seed}: {shortly(a[key])} and {shortly(b[key])}"
    if len(first.views) != len(other.views):
        return f"{len(first.views) - 1} steps and {len(other.views) - 1} with seed {first.seed}"
    return ""


def shortly(value: Any, limit: int = 60) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split()) or "nothing"
    return text if len(text) <= limit else text[: limit - 3] + "..."


@dataclass(frozen=True, slots=True)
class EpisodeBounds:
    """Bounds of one episode: seconds of a reset and of a step, and how many steps."""

    reset_s: float
    step_s: float
    max_steps: int


class EpisodePlayer:
    """Plays one environment of a host. seats: how many of a session."""

    def __init__(
        self,
        link: HostLink,
        environment: str,
        task: Mapping[str, Any],
        bounds: EpisodeBounds,
        seats: int = 1,
    ) -> None:
        self.link = link
        self.environment = environment
        self.task = task
        self.bounds = bounds
        self.seats = seats

    def on(self, link: HostLink) -> EpisodePlayer:
        """The same, at another host."""
        return EpisodePlayer(link, self.environment, self.task, self.bounds, self.seats)

    def open(self) -> Episode:
        return self.link.open(self.environment, self.bounds.reset_s, self.bounds.step_s, self.seats)

    async def play(self, seed: int, policy: Policy, task: Mapping[str, Any] | None = None) -> EpisodeTrace:
        """Plays a whole episode. Raises DeadlineExceeded, EnvHostLost."""
        episode, trace = self.open(), EpisodeTrace(seed)
        try:
            await self.continue_play(episode, trace, policy, self.task if task is None else task)
        finally:
            episode.close()
        return trace

    async def continue_play(
        self, episode: Episode, trace: EpisodeTrace, policy: Policy, task: Mapping[str, Any] | None = None
    ) -> None:
        """Plays an episode, begun or not, until it ends or the policy stops; `trace` grows with it."""
        if not trace.views:
            began = perf_counter()
            result = await episode.reset(trace.seed, self.task if task is None else task)
            trace.reset_s = perf_counter() - began
            trace.note(result)
        while not episode.done and len(trace.acts) < self.bounds.max_steps:
            act = policy(trace.observation, len(trace.acts))
            if act is None:
                return
            began = perf_counter()
            try:
                result = await episode.step(act)
            except (DeadlineExceeded, EnvHostLost) as error:
                text = f"{error.message}, with seed {trace.seed} and action {shortly(act)!r}"
                raise type(error)(text, error.remedy) from error
            trace.steps_s.append(perf_counter() - began)
            trace.acts.append(act)
            trace.note(result)

    async def again(self, trace: EpisodeTrace) -> EpisodeTrace:
        """The same seed and actions once more."""
        return await self.play(trace.seed, replaying(trace.acts))


def replaying(acts: Sequence[Action]) -> Policy:
    """A policy that takes these actions in order."""
    return lambda observation, step: acts[step] if step < len(acts) else None


def at_random(tools: Sequence[Mapping[str, Any]], seed: int) -> Policy:
    """The random policy; its choices follow from `seed`."""
    rng = random.Random(f"policy {seed}")  # else an environment that does the same would mirror it
    return lambda observation, step: policies.random_act(observation, tools, rng)
