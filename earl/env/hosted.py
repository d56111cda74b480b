"""One episode inside a host: its environment object, which step it is at, what it answered last.

The rules of the stream are here, free of I/O: seq counts the steps from 1 (the reset is 0), a
repeated seq is answered with the same result, one step runs at a time.
"""

from __future__ import annotations

import enum
from typing import Any

from earl.env.base import Environment


class Admission(enum.Enum):
    """What to do with a step that arrived."""

    RUN = "run"
    REPEAT = "repeat"
    WAIT = "wait"
    REFUSE = "refuse"


class HostedSession:
    """An open session. `answer` is the last message sent for it; `running` whether a call is under way."""

    __slots__ = (
        "answer",
        "began_ns",
        "done",
        "dropped",
        "environment",
        "id",
        "name",
        "running",
        "seq",
        "task",
        "traceparent",
    )

    def __init__(self, session: int, name: str, traceparent: str = "") -> None:
        self.id = session
        # Of the trace that it is a part of, "" if that is none; when the call under way began.
        self.traceparent = traceparent
        self.began_ns = 0
        self.name = name
        self.environment: Environment | None = None
        self.seq = 0
        self.running = False
        self.done = False
        # Closed or cancelled while a call ran: its answer goes nowhere.
        self.dropped = False
        self.answer: Any = None
        # The asyncio task of an async environment's call, so that Cancel reaches it.
        self.task: Any = None

    def admit(self, seq: int) -> Admission:
        """Judge a reset (seq 0) or step that arrived for this session."""
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
