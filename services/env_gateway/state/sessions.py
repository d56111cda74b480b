"""One episode as the gateway sees it: a state machine without clock or I/O; time is an argument.

    QUEUED ──placed──► RESETTING ──result──► IDLE ◄──result── STEPPING
      ▲ │                  │                   └────step 1…n────►┘
      │ └──────────────────┴── result with done, failure, close, deadline ──► ENDED
      └── host lost before step 1: the reset is tried on another, and must show the same

seq counts the steps from 1; the reset is 0. A repeated seq is answered with the same result, any
other than the next is refused and changes nothing.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

# Longest that a client may ask to wait for anything, and the default.
MAX_LIMIT_S = 7 * 86_400.0
DEFAULT_LIMITS_S = {"queue_s": 60.0, "reset_s": 30.0, "step_s": 30.0, "episode_s": 3_600.0}


class SessionState(enum.Enum):
    QUEUED = "queued"
    RESETTING = "resetting"
    IDLE = "idle"
    STEPPING = "stepping"
    ENDED = "ended"


class StepVerdict(enum.Enum):
    """The gateway's decision on a client's step."""

    FORWARD = "forward"
    # Step 1, while the reset that the client knows the answer of is repeated on another host.
    HOLD = "hold"
    REPEAT = "repeat"
    WAIT = "wait"
    REFUSE = "refuse"


class Arrival(enum.Enum):
    """The meaning of a host's result for the session that it names."""

    ANSWER = "answer"
    LATE = "late"
    AHEAD = "ahead"


@dataclass(slots=True, eq=False)
class GatewaySession:
    """An episode. `client` asked for it and `host` serves it; `pending` is the message
    in flight to the host, `answer` the last one sent to the client."""

    id: int
    client: Any
    # The client's own number for the session.
    number: int
    environment: str
    limits_s: dict[str, float]
    waits_since: float
    # The message that starts it on a host; kept until its first step, for another host.
    reset: Any = None
    # The trace that it belongs to; "" without one.
    traceparent: str = ""
    # Until then an environment that was never served may still appear.
    unknown_until: float = math.inf
    # Hosts that it was placed on.
    attempts: int = 0
    # The client's first step, while the reset is repeated.
    held: Any = None
    state: SessionState = SessionState.QUEUED
    seq: int = 0
    host: Any = None
    episode_ends: float = math.inf
    queue_s: float = 0.0
    # How many of its seats the client plays, and the sum of the rewards of each so far.
    seats: int = 1
    returns: list[float] = field(init=False)
    pending: Any = None
    answer: Any = None
    deadline: float = field(init=False)
    sent_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.sent_at = self.waits_since
        self.returns = [0.0] * self.seats
        self.deadline = self.waits_since + self.limits_s["queue_s"]

    def place(self, host: Any, now: float) -> None:
        """Gives the session to a host, which is sent the reset."""
        if self.attempts == 0:
            self.episode_ends = now + self.limits_s["episode_s"]
        self.attempts += 1
        self.host = host
        self.state = SessionState.RESETTING
        self.pending = self.reset
        self.sent_at = now
        self.queue_s += now - self.waits_since
        self.deadline = now + self.limits_s["reset_s"]

    def may_move(self, attempts: int) -> bool:
        """Returns whether another host may take over: no step was taken, and fewer than `attempts` hosts
        tried.
        """
        begun = self.state in (SessionState.RESETTING, SessionState.IDLE) and self.reset is not None
        return begun and self.seq == 0 and self.attempts < attempts

    def move(self, session_id: int, now: float) -> None:
        """Queues a session whose host is lost, under a new id that no late result of that host names."""
        self.id = session_id
        self.host = self.pending = None
        self.state = SessionState.QUEUED
        self.waits_since = now
        self.deadline = now + self.limits_s["queue_s"]

    @property
    def repeats_reset(self) -> bool:
        """Returns whether the client knows the reset's answer and another host is to give it again."""
        return self.answer is not None and self.state in (SessionState.QUEUED, SessionState.RESETTING)

    def judge_step(self, seq: int) -> StepVerdict:
        """Judges a step with this seq; changes nothing."""
        state = self.state
        if seq == self.seq + 1 and state is SessionState.IDLE:
            return StepVerdict.FORWARD
        if seq == self.seq and seq > 0:
            return StepVerdict.WAIT if state is SessionState.STEPPING else StepVerdict.REPEAT
        if seq == 1 and self.repeats_reset:
            return StepVerdict.HOLD if self.held is None else StepVerdict.WAIT
        return StepVerdict.REFUSE

    def start_step(self, step: Any, now: float) -> None:
        """Takes note that `step`, the message to the host, is sent."""
        self.seq += 1
        self.pending, self.reset, self.held = step, None, None
        self.state = SessionState.STEPPING
        self.sent_at = now
        self.deadline = now + self.limits_s["step_s"]

    def judge_result(self, seq: int) -> Arrival:
        """Judges a result with this seq; changes nothing."""
        if seq == self.seq and self.state in (SessionState.RESETTING, SessionState.STEPPING):
            return Arrival.ANSWER
        return Arrival.AHEAD if seq > self.seq else Arrival.LATE

    def rewarded(self, rewards: Iterable[float]) -> None:
        """Adds the rewards of a step, one for each seat."""
        self.returns = [earned + reward for earned, reward in zip(self.returns, rewards, strict=True)]

    def answered(self, done: bool) -> None:
        """The host's result was accepted."""
        self.pending = None
        self.state = SessionState.ENDED if done else SessionState.IDLE
        self.deadline = self.episode_ends

    def end(self) -> None:
        self.pending = self.reset = self.held = None
        self.state = SessionState.ENDED

    def progressed(self, seq: int, now: float) -> bool:
        """Restarts the deadline of a reset or step that reports progress. False if it is not in flight."""
        if self.judge_result(seq) is not Arrival.ANSWER:
            return False
        self.deadline = now + self.limits_s["reset_s" if self.state is SessionState.RESETTING else "step_s"]
        return True

    def overdue(self, now: float) -> str:
        """Describes what took too long; empty if nothing did."""
        if self.state is SessionState.ENDED:
            return ""
        if now >= self.episode_ends:
            return f"the episode took longer than {self.limits_s['episode_s']:g} s"
        if now < self.deadline:
            return ""
        if self.state is SessionState.QUEUED:
            return f"no host had free capacity within {self.limits_s['queue_s']:g} s"
        if self.state is SessionState.RESETTING:
            return f"the reset took longer than {self.limits_s['reset_s']:g} s"
        return f"step {self.seq} took longer than {self.limits_s['step_s']:g} s"


def limits_of(message: Any) -> dict[str, float]:
    """The limits of an Open, in seconds; 0 means the default. Raises ValueError naming a bad one."""
    limits: dict[str, float] = {}
    for name, default_s in DEFAULT_LIMITS_S.items():
        given_s = getattr(message, name)
        if not 0 <= given_s <= MAX_LIMIT_S:
            raise ValueError(f"{name} = {given_s!r} is not between 0 and {MAX_LIMIT_S:g}")
        limits[name] = given_s or default_s
    return limits
