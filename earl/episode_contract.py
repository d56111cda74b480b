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
_MESSAGE_CHARACTERS = 500


def one_line(message: str) -> str:
    """A message as one line for a person to read: a longer one only costs the ledger memory."""
    return " ".join(message.split())[:_MESSAGE_CHARACTERS]
