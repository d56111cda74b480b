"""One episode as the gateway sees it: a state machine without clock or I/O; time is an argument.

    QUEUED ──placed──► RESETTING ──result──► IDLE ◄──result── STEPPING
       │                   │                   └────step 1…n────►┘
       └───────────────────┴── result with done, failure, close, deadline ──► ENDED

seq counts the steps from 1; the reset is 0. A repeated seq is answered with the same result, any
other than the next is refused and changes nothing.
"""

from __future__ import annotations

import enum
import math
from typing import Any

from earl.env.base import ROLES

# Longest that a client may ask to wait for anything, and what it gets if it does not say.
MAX_LIMIT_S = 7 * 86_400.0
DEFAULT_LIMITS_S = {"queue_s": 60.0, "reset_s": 30.0, "step_s": 30.0, "episode_s": 3_600.0}


class State(enum.Enum):
    QUEUED = "queued"
    RESETTING = "resetting"
    IDLE = "idle"
    STEPPING = "stepping"
    ENDED = "ended"


class Verdict(enum.Enum):
    """What to do with a client's step."""

    FORWARD = "forward"
    REPEAT = "repeat"
    WAIT = "wait"
    REFUSE = "refuse"


class Arrival(enum.Enum):
    """What a host's result is to the session that it names."""

    ANSWER = "answer"
    LATE = "late"
    AHEAD = "ahead"


class Session:
    """An episode. `client` and `host` are whoever asked for it and serves it; `pending` is the message
    in flight to the host, `answer` the last one sent to the client."""

    __slots__ = (
        "answer",
        "client",
        "deadline",
        "environment",
        "episode_ends",
        "host",
        "id",
        "limits_s",
        "number",
        "opened_at",
        "pending",
        "queue_s",
        "reset",
        "return_",
        "sent_at",
        "seq",
        "state",
        "unknown_until",
    )

    def __init__(
        self,
        session_id: int,
        client: Any,
        number: int,
        environment: str,
        limits_s: dict[str, float],
        now: float,
        reset: Any = None,
    ) -> None:
        self.id = session_id
        self.client = client
        # The client's own number for the session.
        self.number = number
        self.environment = environment
        self.limits_s = limits_s
        self.reset = reset
        self.state = State.QUEUED
        self.seq = 0
        self.host: Any = None
        self.opened_at = now
        self.deadline = now + limits_s["queue_s"]
        # Until then an environment that was never served may still appear.
        self.unknown_until = math.inf
        self.episode_ends = math.inf
        self.sent_at = now
        self.queue_s = 0.0
        # Sum of the rewards so far.
        self.return_ = 0.0
        self.pending: Any = None
        self.answer: Any = None

    def place(self, host: Any, now: float) -> None:
        """A host was found: the reset is sent."""
        self.host = host
        self.state = State.RESETTING
        self.sent_at = now
        self.queue_s = now - self.opened_at
        self.deadline = now + self.limits_s["reset_s"]
        self.episode_ends = now + self.limits_s["episode_s"]

    def judge_step(self, seq: int) -> Verdict:
        """What a step with this seq means now; changes nothing."""
        state = self.state
        if seq == self.seq + 1 and state is State.IDLE:
            return Verdict.FORWARD
        if seq == self.seq and seq > 0:
            return Verdict.WAIT if state is State.STEPPING else Verdict.REPEAT
        return Verdict.REFUSE

    def start_step(self, now: float) -> None:
        self.seq += 1
        self.state = State.STEPPING
        self.sent_at = now
        self.deadline = now + self.limits_s["step_s"]

    def judge_result(self, seq: int) -> Arrival:
        """What a result with this seq means now; changes nothing."""
        if seq == self.seq and self.state in (State.RESETTING, State.STEPPING):
            return Arrival.ANSWER
        return Arrival.AHEAD if seq > self.seq else Arrival.LATE

    def answered(self, done: bool) -> None:
        """The host's result was accepted."""
        self.pending = None
        self.state = State.ENDED if done else State.IDLE
        self.deadline = self.episode_ends

    def end(self) -> None:
        self.pending = None
        self.state = State.ENDED

    def progressed(self, seq: int, now: float) -> bool:
        """A slow reset or step says it is alive: it gets its time again. False if it is not in flight."""
        if self.judge_result(seq) is not Arrival.ANSWER:
            return False
        self.deadline = now + self.limits_s["reset_s" if self.state is State.RESETTING else "step_s"]
        return True

    def overdue(self, now: float) -> str:
        """What took too long, in words; empty if nothing did."""
        if self.state is State.ENDED:
            return ""
        if now >= self.episode_ends:
            return f"the episode took longer than {self.limits_s['episode_s']:g} s"
        if now < self.deadline:
            return ""
        if self.state is State.QUEUED:
            return f"no host had room within {self.limits_s['queue_s']:g} s"
        if self.state is State.RESETTING:
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


# Endings by their number in earl.v1.Ending.
UNSPECIFIED, OK, TRUNCATED, ENV_ERROR, INFRA_ERROR, TIMEOUT = range(6)
_RETURN_TOLERANCE = 1e-6


def fault_in(result: Any, max_bytes: int, bounds: tuple[float, float] | None, return_: float) -> str:
    """What is wrong with a host's Result; empty if it may be passed on.

    bounds: declared for the sum of an episode's rewards; return_: that sum before this result.
    """
    if not math.isfinite(result.reward):
        return f"reward {result.reward} is not finite"
    size_bytes = result.ByteSize()
    if size_bytes > max_bytes:
        return f"result of {size_bytes} bytes is larger than {max_bytes}"
    if result.observation.role not in ("", *ROLES):
        return f"observation has role {result.observation.role!r}, not one of {', '.join(ROLES)}"
    if not result.done:
        if result.ending != UNSPECIFIED:
            return f"ending {result.ending} on a result that is not done"
    elif result.ending not in (OK, TRUNCATED, ENV_ERROR, INFRA_ERROR, TIMEOUT):
        return f"unknown ending {result.ending}"
    elif result.ending in (OK, TRUNCATED):
        for key, value in result.metrics.items():
            if not math.isfinite(value):
                return f"metric {key} = {value} is not finite"
    if bounds is not None and result.ending not in (ENV_ERROR, INFRA_ERROR, TIMEOUT):
        total = return_ + result.reward
        margin = _RETURN_TOLERANCE * max(1.0, abs(total))
        if result.done and not bounds[0] - margin <= total <= bounds[1] + margin:
            return f"return {total:g} is outside of the declared [{bounds[0]:g}, {bounds[1]:g}]"
    return ""
