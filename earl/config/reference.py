"""The size of the reference stage's arena, and the check of its key."""

from __future__ import annotations

from earl.config.data_plane import GRAIN_BYTES
from earl.config.run import RunConfig
from earl.errors import ConfigError

LOGPROB_BYTES = 4


def reference_bytes(config: RunConfig, context_tokens: int) -> int:
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


def check_reference(config: RunConfig) -> None:
    """Raises ConfigError if the stage could wait forever for space in its arena."""
    given, needed = config.reference.arena_bytes, reference_bytes(config, config.planned_context)
    if config.trainer.uses_reference and 0 < given < needed:
        raise ConfigError(
            f"reference.arena_bytes = {given} cannot hold the log-probs of scheduler.staleness + 2 batches "
            f"of {config.planned_context} tokens a trajectory: {needed} bytes",
            "leave reference.arena_bytes out, or raise it",
        )
