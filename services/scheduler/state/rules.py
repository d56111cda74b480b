"""The ledger's rules, from the run file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from typing import Any

from earl.config.run import RunConfig


def _key(name: str, default: Any = MISSING) -> Any:
    """A field that holds the run file's key of that name."""
    return field(default=default, metadata={"key": name})


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
    episode_s: float = _key("scheduler.episode_s")
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
    # Chance never decides what is trained: see TicketAttempts.fail.
    deterministic: bool = _key("deterministic", False)
    heartbeat_s: float = _key("scheduler.heartbeat_s", 1.0)
    heartbeats_per_s: float = _key("scheduler.heartbeats_per_s", 100.0)
    # Conversations of each batch and of each evaluation.
    transcripts: int = _key("scheduler.transcripts", 0)
    keep_best: bool = _key("evaluation.keep_best", True)
    # Names what decides how an instance is played: see EvaluationRecord.setting.
    evaluation_setting: str = ""


def rules_of(config: RunConfig) -> Rules:
    """Reads the ledger's rules from the run file."""
    keys = {rule.name: rule.metadata["key"] for rule in fields(Rules) if rule.metadata}
    values = {name: attrgetter(key)(config) for name, key in keys.items()}
    return Rules(**values, evaluation_setting=_evaluation_setting(config))


def _evaluation_setting(config: RunConfig) -> str:
    """Two runs of one policy in which this is the same play an evaluation's instances alike."""
    parts = (
        config.model.model_dump(mode="json"),
        config.environment.name,
        config.environment.task,
        config.evaluation.temperature,
        config.scheduler.max_turns,
        config.longest_sequence,
        config.rollout.max_new_tokens,
    )
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
