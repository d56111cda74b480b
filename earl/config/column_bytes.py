"""The size of an arena for the log-probs of a frozen policy's stage, and the check of its key."""

from __future__ import annotations

from earl.config.data_plane import GRAIN_BYTES
from earl.config.run import RunConfig
from earl.errors import ConfigError

LOGPROB_BYTES = 4


def column_bytes(config: RunConfig, context_tokens: int) -> int:
    """Bytes for the log-probs of all trajectories that may wait for the trainer, each of so many tokens.

    Those of staleness + 1 batches are outstanding, and one batch was just trained and not freed yet; a
    lease's log-probs lie together until the last of them may go: twice that. A rank may get them all,
    whatever dp and tp are: sequences are dealt out as they come. In whole grains each: so much bounds what
    they occupy however they lie together, and an arena's table has a slot for every grain.
    """
    scheduler = config.scheduler
    sequences = 2 * (scheduler.staleness + 2) * config.batch_trajectories
    grains = -(-LOGPROB_BYTES * context_tokens // GRAIN_BYTES)
    return sequences * grains * GRAIN_BYTES


def check_frozen_stages(config: RunConfig) -> None:
    """Raises ConfigError if a stage could wait forever for space in its arena."""
    needed = column_bytes(config, config.planned_context)
    for role, stage in config.column_stages.items():
        if 0 < stage.arena_bytes < needed:
            raise ConfigError(
                f"{role}.arena_bytes = {stage.arena_bytes} cannot hold the log-probs of scheduler.staleness "
                f"+ 2 batches of {config.planned_context} tokens a trajectory: {needed} bytes",
                f"leave {role}.arena_bytes out, or raise it",
            )
