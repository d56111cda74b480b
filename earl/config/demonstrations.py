"""Demonstrations: conversations that a warm-up imitates, in a column of a task set (SFT).

    [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}, {"role": "tool", …}, …]

A turn is what the environment says, as "user" or "tool", and the answer to it, as "assistant".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Keys of a message; those after the first two only say whose it is.
KEYS = ("role", "content", "name", "tool_call_id")
ANSWER, OBSERVED = "assistant", ("user", "tool")


@dataclass(frozen=True, slots=True)
class DemonstratedTurn:
    """A text of the environment, its role, and the answer that is imitated."""

    role: str
    text: str
    answer: str


def demonstration(messages: object) -> list[DemonstratedTurn]:
    """The turns of a conversation. Raises ValueError that says which message is wrong, from 1 on."""
    if not isinstance(messages, list) or not messages:
        raise ValueError("it is no list of messages")
    turns: list[DemonstratedTurn] = []
    observation: tuple[str, str] | None = None
    for number, message in enumerate(messages, 1):
        role, text = _message(number, message)
        if role == ANSWER:
            if observation is None:
                raise ValueError(f"message {number} is an answer to nothing: a user or a tool speaks first")
            turns.append(DemonstratedTurn(*observation, text))
            observation = None
        elif observation is not None:
            raise ValueError(f"message {number} follows one that has no answer: join them in one message")
        else:
            observation = role, text
    if observation is not None:
        raise ValueError("its last message is no answer: end with the role assistant")
    return turns


def _message(number: int, message: Any) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        raise ValueError(f"message {number} is no object with role and content")
    role, text = message.get("role"), message.get("content")
    lost = [key for key, value in message.items() if key not in KEYS and value]
    if lost:
        raise ValueError(
            f"message {number} has {', '.join(map(repr, lost))}, which would be lost: write it into the "
            "content, as the policy would write it"
        )
    if role == "system":
        raise ValueError(f"message {number} has the role system: set model.system, or the environment's")
    if role not in (*OBSERVED, ANSWER):
        raise ValueError(f"message {number} has the role {role!r}, not user, tool or assistant")
    if not isinstance(text, str) or (role == ANSWER and not text):
        raise ValueError(f"message {number} has no text as its content")
    return role, text
