"""The environments of a run with every bound resolved, whichever form its run file has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from earl.config.environment import EnvironmentConfig
from earl.config.model import ModelConfig
from earl.config.rollout import RolloutConfig
from earl.config.scheduler import SchedulerConfig
from earl.config.weight import Schedule, schedule_of, weight_at
from earl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MixtureEntry:
    """One environment of a run. Lengths in tokens.

    label: what it is called in metrics and tickets, unique in the run. name: as hosts register it.
    evaluation_tasks: laid over the task in evaluations, in turns. share: of the groups at the first step, all
    entries' together 1. schedule: the weight by step, in the unit of `share`; empty where all weights are
    constant. group_size: episodes of a group, in each of which the policy plays `seats`. frozen_every: steps
    for which a version is the opponent in training, 0 where that is the current one. rewards: the least and
    the most that a trajectory may earn.
    """

    label: str
    name: str
    task: dict[str, Any]
    evaluation_tasks: Sequence[dict[str, Any]]
    share: float
    schedule: Schedule
    group_size: int
    seats: int
    frozen_every: int
    max_turns: int
    max_new_tokens: int
    max_context_tokens: int
    system: str
    rewards: tuple[float, float]
    section: EnvironmentConfig

    def evaluation_task(self, number: int) -> dict[str, Any]:
        """The keys laid over the task of the environment's number-th instance in an evaluation."""
        return self.evaluation_tasks[number % len(self.evaluation_tasks)] if self.evaluation_tasks else {}

    @property
    def group_trajectories(self) -> int:
        """The trajectories of a group: one for each seat of its episodes that learns."""
        return self.group_size * self.trained_seats

    @property
    def trained_seats(self) -> int:
        """The seats of a training episode that learn: one against a frozen opponent, otherwise all."""
        return 1 if self.frozen_every else self.seats

    @property
    def contexts(self) -> int:
        """The contexts of a training episode at the policy's engines, or at its opponent's, where these are
        more."""
        return max(self.trained_seats, self.seats - self.trained_seats)


def resolve(
    sections: Sequence[EnvironmentConfig],
    scheduler: SchedulerConfig,
    rollout: RolloutConfig,
    model: ModelConfig,
    longest_sequence: int,
) -> tuple[MixtureEntry, ...]:
    """The entries in the order of the run file. longest_sequence: of the whole run."""
    schedules = [schedule_of(section.weight) for section in sections]
    total = sum(weight_at(schedule, 0) for schedule in schedules) or 1.0
    varies = any(len(schedule) > 1 for schedule in schedules)
    return tuple(
        MixtureEntry(
            label=section.label or section.name,
            name=section.name,
            task=section.task,
            evaluation_tasks=section.evaluation_tasks,
            share=weight_at(schedule, 0) / total,
            schedule=tuple((step, weight / total) for step, weight in schedule) if varies else (),
            group_size=section.group_size or scheduler.group_size,
            seats=section.seats,
            frozen_every=section.frozen_every if section.opponent == "frozen" else 0,
            max_turns=section.max_turns or scheduler.max_turns,
            max_new_tokens=section.max_new_tokens or rollout.max_new_tokens,
            max_context_tokens=min(section.max_context_tokens or longest_sequence, longest_sequence),
            system=section.system or model.system,
            rewards=_bounds(section.reward_range),
            section=section,
        )
        for section, schedule in zip(sections, schedules, strict=True)
    )


def _bounds(reward_range: Sequence[float]) -> tuple[float, float]:
    """The least and the most that an episode may earn; without bounds unless two are given."""
    if len(reward_range) != 2:
        return -math.inf, math.inf
    return reward_range[0], reward_range[1]


def entry_of(entries: Sequence[MixtureEntry], label: str) -> MixtureEntry:
    """The entry of this label; "" is the first one, as in tickets of a run that has only one.

    Raises ConfigError for a label that none has.
    """
    for entry in entries:
        if label in ("", entry.label):
            return entry
    raise ConfigError(
        f"the run has no environment {label!r}", f"give one of {', '.join(entry.label for entry in entries)}"
    )


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The host processes of one target. sessions: that each of them plays at the same time."""

    serve: str
    hosts: int
    sessions: int
    names: tuple[str, ...]


def host_plans(entries: Sequence[MixtureEntry]) -> list[HostPlan]:
    """The host processes that the run starts itself: entries that name one target share its processes."""
    sharing: dict[str, list[MixtureEntry]] = {}
    for entry in entries:
        if entry.section.serve:
            sharing.setdefault(entry.section.serve, []).append(entry)
    return [
        HostPlan(
            serve,
            max(entry.section.hosts for entry in those),
            min(entry.section.sessions_per_host for entry in those),
            tuple(dict.fromkeys(entry.name for entry in those)),
        )
        for serve, those in sharing.items()
    ]


def host_plan(entries: Sequence[MixtureEntry], serve: str) -> HostPlan:
    """The plan of one host process of a run. Raises ConfigError for a target that no entry names.

    serve: the target; "" for the only one.
    """
    plans = {plan.serve: plan for plan in host_plans(entries)}
    if not serve and len(plans) == 1:
        return next(iter(plans.values()))
    if serve not in plans:
        raise ConfigError(
            f"--serve {serve!r} is no serve of the run file's environments",
            f"give one of {', '.join(map(repr, plans))}" if plans else "set environment.serve",
        )
    return plans[serve]
