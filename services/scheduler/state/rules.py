"""What a run file says to the ledger."""

from __future__ import annotations

from dataclasses import dataclass


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
