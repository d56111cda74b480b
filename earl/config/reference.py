"""What the reference stage's arena must hold, and what its keys cannot tell one by one."""

from __future__ import annotations

from earl.config.run import RunConfig
from earl.errors import ConfigError

# A region's alignment, and the file's share of its table: an arena has a slot per this many bytes.
LEAST_REGION_BYTES = 4096
LOGPROB_BYTES = 4


def reference_bytes(config: RunConfig) -> int:
    """Bytes for the log-probs of all trajectories that may wait for the trainer, at their longest.

    Those of staleness + 1 batches are outstanding, and one batch was just trained and not freed yet; a
    lease's log-probs lie together until the last of them may go: twice that. A rank may get them all,
    whatever dp and tp are: sequences are dealt out as they come.
    """
    scheduler = config.scheduler
    sequences = 2 * (scheduler.staleness + 2) * scheduler.batch_groups * scheduler.group_size
    return sequences * max(LEAST_REGION_BYTES, LOGPROB_BYTES * config.rollout.max_context_tokens)


def check_reference(config: RunConfig) -> None:
    """Raises ConfigError if the stage could come to wait for room that never comes."""
    given, needed = config.reference.arena_bytes, reference_bytes(config)
    if config.trainer.kl_coefficient > 0 and 0 < given < needed:
        raise ConfigError(
            f"reference.arena_bytes = {given} cannot hold the log-probs of scheduler.staleness + 2 batches "
            f"at rollout.max_context_tokens: {needed} bytes",
            "leave reference.arena_bytes out, or raise it",
        )
