"""One episode inside a host: its environment object, which step it is at, what it answered last.

The rules of the stream are here, free of I/O: seq counts the steps from 1 (the reset is 0), a
repeated seq is answered with the same result, one step runs at a time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from earl.env.base import Environment


class Admission(enum.Enum):
    """The decision on a step that arrived."""

    RUN = "run"
    REPEAT = "repeat"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(slots=True, eq=False)
class HostedSession:
    """An open session, `id` of environment `name`."""

    id: int
    name: str
    # The trace that it belongs to; "" without one.
    traceparent: str = ""
    # How many of its seats the client plays.
    seats: int = 1
    # Names of the tools that its agent may call; all if empty.
    tools: tuple[str, ...] = ()
    # When the call in progress began, Unix nanoseconds.
    began_ns: int = 0
    environment: Environment | None = None
    seq: int = 0
    # Whether a call is in progress.
    running: bool = False
    done: bool = False
    # Closed or cancelled while a call ran: its answer goes nowhere.
    dropped: bool = False
    # The last message sent for it.
    answer: Any = None
    # The asyncio task of an async environment's call, so that Cancel reaches it.
    task: Any = None

    def admit(self, seq: int) -> Admission:
        """Judges a reset (seq 0) or step that arrived for this session."""
        if seq == self.seq:
            return Admission.WAIT if self.running else Admission.REPEAT
        if seq == self.seq + 1 and not self.running and not self.done:
            return Admission.RUN
        return Admission.REFUSE

    def start(self, seq: int) -> None:
        self.seq = seq
        self.running = True

    def finish(self, answer: Any, done: bool) -> None:
        self.running = False
        self.answer = answer
        self.done = self.done or done
