"""An episode's columns and message, as rollout workers, scheduler and trainer agree on them. Pure."""

from __future__ import annotations

# The columns that a rollout worker publishes of each trajectory, with their dtypes.
SAMPLED_COLUMNS = {
    "tokens": "int32",
    "loss_mask": "uint8",
    "logprobs": "float32",
    "versions": "int32",
    "turns": "int32",
}
# The column beside them in a run with trainer.turn_rewards.
TURN_REWARDS = "rewards"


def published_columns(*, turn_rewards: bool) -> dict[str, str]:
    """The columns of a trajectory in a run's data plane, with their dtypes."""
    return SAMPLED_COLUMNS | ({TURN_REWARDS: "float32"} if turn_rewards else {})


_MESSAGE_CHARACTERS = 500


def one_line(message: str) -> str:
    """A message as one line for a person to read: a longer one only costs the ledger memory."""
    return " ".join(message.split())[:_MESSAGE_CHARACTERS]
