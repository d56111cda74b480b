"""The ledger's rules, from the run file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from earl.config.mixture import MixtureEntry
from earl.config.protected import protected_kl
from earl.config.run import RunConfig
from earl.config.task_set import TaskSet
from earl.config.weight import Schedule
from earl.fragments.advantages import GROUP_RELATIVE
from services.scheduler.state.draws import Draws
from services.scheduler.state.seeds import derive
from services.scheduler.state.tickets import Purpose


def _key(name: str, default: Any = MISSING) -> Any:
    """A field that holds the run file's key of that name."""
    return field(default=default, metadata={"key": name})


@dataclass(frozen=True, slots=True)
class Share:
    """One environment of the mixture. label: as its tickets have it. share: of the groups, together 1.

    group_size: episodes of a group, 0 for the rule of that name. seats: of the policy in each of them, but
    for evaluations, where it has one. frozen: in training a frozen version plays all of them but one. train,
    held_out: numbers of its tasks, both empty without a task set. schedule: its weight by step, where shares
    change during the run; then that of every environment, and `share` is the one at the first step.
    protected: evaluations judge whether it was kept; lowest: the least that an episode of it may earn.
    curriculum: its next task follows from successes, and otherwise from epochs. recorded: episodes that the
    warm-up imitates, 0 if it plays.
    """

    label: str = ""
    share: float = 1.0
    group_size: int = 0
    train: Sequence[int] = field(default=(), repr=False)
    held_out: Sequence[int] = field(default=(), repr=False)
    schedule: Schedule = ()
    protected: bool = False
    lowest: float = 0.0
    curriculum: bool = False
    seats: int = 1
    frozen: bool = False
    recorded: int = 0

    @property
    def trained_seats(self) -> int:
        """The seats of a training episode that have a ticket."""
        return 1 if self.frozen else self.seats


@dataclass(frozen=True, slots=True)
class Rules:
    """Keys of the run file that the ledger goes by; earl.config has their meanings."""

    seed: int = _key("seed")
    warmup_batches: int = _key("warmup.batches")
    warmup_episodes: int = _key("warmup.batch_episodes")
    steps: int = _key("scheduler.steps")
    group_size: int = _key("scheduler.group_size")
    batch_groups: int = _key("scheduler.batch_groups")
    staleness: int = _key("scheduler.staleness")
    attempts: int = _key("scheduler.attempts")
    lease_s: float = _key("scheduler.lease_s")
    episode_s: float = _key("episode_s")
    membership_s: float = _key("scheduler.membership_s")
    temperature: float = _key("scheduler.temperature")
    train_limit_s: float = _key("scheduler.train_limit_s")
    checkpoint_every: int = _key("trainer.checkpoint_every")
    evaluation_episodes: int = _key("evaluation.episodes")
    evaluate_at_start: bool = _key("evaluation.at_start")
    evaluate_at_end: bool = _key("evaluation.at_end")
    evaluate_every_steps: int = _key("evaluation.every_steps")
    evaluate_every_episodes: int = _key("evaluation.every_episodes")
    evaluation_temperature: float = _key("evaluation.temperature")
    # Evaluations play training's tasks, and their episodes are recorded.
    records: bool = _key("evaluation.record", False)
    # Chance never decides what is trained: see TicketAttempts.fail.
    deterministic: bool = _key("exact", False)
    heartbeat_s: float = _key("scheduler.heartbeat_s", 1.0)
    heartbeats_per_s: float = _key("scheduler.heartbeats_per_s", 100.0)
    # Conversations of each batch and of each evaluation.
    transcripts: int = _key("scheduler.transcripts", 0)
    keep_best: bool = _key("evaluation.keep_best", True)
    # The part of its first score that a protected environment may lose.
    protected_loss: float = _key("evaluation.protected_loss", 0.0)
    # 0: all of a group.
    min_group_size: int = _key("scheduler.min_group_size", 0)
    extra_episodes: int = _key("scheduler.extra_episodes", 0)
    close_groups: int = _key("scheduler.close_groups", 0)
    resample: int = _key("scheduler.resample", 0)
    drops_truncated: bool = False
    # Times that a trained group may be trained again, and the versions that it may be old then.
    replay_reuse: int = _key("replay.reuse", 0)
    replay_age: int = _key("replay.max_age", 4)
    replay_order: str = _key("replay.order", "freshest")
    # Groups of a batch that are trained again; groups that are kept for that.
    replay_groups: int = 0
    replay_capacity: int = 0
    # Groups whose rewards are all equal teach nothing: their advantages are 0.
    replay_needs_signal: bool = True
    # Weight of the reward model's score in a reward; 0 without one.
    score_coefficient: float = _key("score_coefficient", 0.0)
    # The longest predicted responses of a batch are leased first.
    longest_first: bool = False
    # The environments, at least one.
    mixture: tuple[Share, ...] = (Share(),)
    # Labels of the environments whose trajectories the reference stage reads; None: of all.
    reference_for: frozenset[str] | None = None
    # Names what decides how an instance is played: see EvaluationRecord.setting.
    evaluation_setting: str = ""
    # By purpose; follows from seed, batch_groups and mixture.
    _draws: Mapping[Purpose, Draws] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shares = [share.share for share in self.mixture]
        scheduled = any(share.schedule for share in self.mixture)
        schedules = [share.schedule for share in self.mixture] if scheduled else []
        by_purpose = {
            purpose: Draws(shares, each, self.batch_groups, derive(self.seed, "mixture", purpose))
            for purpose, each in ((Purpose.WARMUP, ()), (Purpose.TRAIN, schedules))
        }
        object.__setattr__(self, "_draws", by_purpose)

    def draws(self, purpose: Purpose) -> Draws:
        """Decides the environment of each place of the warm-up's or training's schedule."""
        return self._draws[purpose]


def rules_of(
    config: RunConfig,
    task_sets: Mapping[str, TaskSet] = MappingProxyType({}),
    recorded: Mapping[str, int] = MappingProxyType({}),
) -> Rules:
    """Reads the ledger's rules from the run file.

    By the label of the environment: task_sets; recorded, the number of episodes that the warm-up imitates.
    """
    keys = {rule.name: rule.metadata["key"] for rule in fields(Rules) if rule.metadata}
    values = {name: attrgetter(key)(config) for name, key in keys.items()}
    mixture = tuple(
        _share(config, entry, task_sets.get(entry.label), recorded.get(entry.label, 0))
        for entry in config.mixture
    )
    # Otherwise all groups of a batch have one prediction.
    differ = len(mixture) > 1 or any(share.train for share in mixture)
    return Rules(
        **values,
        drops_truncated=config.scheduler.truncated == "drop",
        replay_groups=config.replay.batch_part(config.scheduler.batch_groups),
        replay_capacity=config.replay.kept_groups(config.scheduler.batch_groups),
        replay_needs_signal=config.scheduler.advantage in GROUP_RELATIVE,
        longest_first=differ and config.scheduler.length_order != "drawn",
        mixture=mixture,
        reference_for=None if config.trainer.kl_coefficient else frozenset(protected_kl(config)),
        evaluation_setting=_evaluation_setting(config, task_sets),
    )


def _share(config: RunConfig, entry: MixtureEntry, tasks: TaskSet | None, recorded: int) -> Share:
    # Tickets of the only environment need no label.
    label = entry.label if config.environments else ""
    train, held_out = (tasks.train, tasks.held_out) if tasks is not None else ((), ())
    section = entry.section
    return Share(
        label, entry.share, entry.group_size, train, held_out, entry.schedule,
        section.protected, entry.rewards[0], section.order == "curriculum", entry.seats,
        entry.frozen_every > 0, recorded,
    )  # fmt: skip


def _evaluation_setting(config: RunConfig, task_sets: Mapping[str, TaskSet]) -> str:
    """Two runs of one policy in which this is the same play an evaluation's instances alike."""
    entries = config.mixture
    parts: Any = [[entry.label, *_how_played(config, entry)] for entry in entries]
    if not config.environments:
        parts = _how_played(config, entries[0])
    if task_sets:
        parts = [parts, [[label, tasks.sha256, tasks.split] for label, tasks in sorted(task_sets.items())]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _how_played(config: RunConfig, entry: MixtureEntry) -> tuple[Any, ...]:
    model = config.model.model_copy(update={"system": entry.system}).model_dump(mode="json")
    if not model["stop_texts"]:
        del model["stop_texts"]
    return (
        model,
        entry.name,
        [entry.task | laid for laid in entry.evaluation_tasks] or entry.task,
        config.evaluation.temperature,
        entry.max_turns,
        # What a machine holds is no setting: runs without a bound are compared wherever they ran.
        entry.max_context_tokens if _has_bound(config, entry) else 0,
        entry.max_new_tokens,
        # Only where some are named, as stop_texts: the settings of runs without are those of before.
        *([sorted(entry.section.tools)] if entry.section.tools else []),
        *([config.evaluation.filters.active] if config.evaluation.filters else []),
        *(["training's tasks"] if config.evaluation.record else []),
    )


def _has_bound(config: RunConfig, entry: MixtureEntry) -> bool:
    """Returns whether the run file bounds the environment's contexts."""
    return bool(config.rollout.max_context_tokens or entry.section.max_context_tokens)
