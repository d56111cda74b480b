"""What a run file says to the ledger."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from earl.config.run import RunConfig


@dataclass(frozen=True, slots=True)
class Rules:
    """See earl.config.scheduler for the meanings."""

    seed: int
    warmup_batches: int
    warmup_episodes: int
    steps: int
    group_size: int
    batch_groups: int
    staleness: int
    attempts: int
    lease_s: float
    episode_s: float
    membership_s: float
    temperature: float
    train_limit_s: float
    checkpoint_every: int
    evaluation_episodes: int
    evaluate_at_start: bool
    evaluate_at_end: bool
    evaluate_every_steps: int
    evaluate_every_episodes: int
    evaluation_temperature: float
    # Chance never decides what is trained: see Tickets.fail.
    deterministic: bool = False
    heartbeat_s: float = 1.0
    heartbeats_per_s: float = 100.0
    # Conversations of each batch and of each evaluation.
    transcripts: int = 0
    keep_best: bool = True
    # Names what decides how an instance is played: see Evaluation.setting.
    evaluation_setting: str = ""


def rules_of(config: RunConfig) -> Rules:
    """What the run file says to the ledger."""
    scheduler, warmup, evaluation = config.scheduler, config.warmup, config.evaluation
    return Rules(
        seed=config.seed,
        warmup_batches=warmup.batches,
        warmup_episodes=warmup.batch_episodes,
        steps=scheduler.steps,
        group_size=scheduler.group_size,
        batch_groups=scheduler.batch_groups,
        staleness=scheduler.staleness,
        attempts=scheduler.attempts,
        lease_s=scheduler.lease_s,
        episode_s=scheduler.episode_s,
        membership_s=scheduler.membership_s,
        heartbeat_s=scheduler.heartbeat_s,
        heartbeats_per_s=scheduler.heartbeats_per_s,
        temperature=scheduler.temperature,
        train_limit_s=scheduler.train_limit_s,
        checkpoint_every=config.trainer.checkpoint_every,
        evaluation_episodes=evaluation.episodes,
        evaluate_at_start=evaluation.at_start,
        evaluate_at_end=evaluation.at_end,
        evaluate_every_steps=evaluation.every_steps,
        evaluate_every_episodes=evaluation.every_episodes,
        evaluation_temperature=evaluation.temperature,
        deterministic=config.deterministic,
        transcripts=scheduler.transcripts,
        keep_best=evaluation.keep_best,
        evaluation_setting=_evaluation_setting(config),
    )


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
