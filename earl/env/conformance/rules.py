"""The rules of the environment stream, as a host must keep them, message by message. Pure.

A Judge gets what the examiner sends, sees all that the host sends, and notes each Violation under the
check that it counts against (card.py). What an honest host may do because messages cross on the wire is
allowed for: a result that was sent before a Close or Cancel was read is not late. It is late after the
Pong that followed them, since a host handles a stream's messages in their order.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from earl.env.base import MAX_SEATS, ROLES, Ending
from earl.env.conformance.offered_tools import fault_in_tools
from earl.env.serve import NAME

PROTOCOL = 1
MAX_CAPACITY = 65_536
MAX_NAME = 256
MAX_PROGRESS = 1_024
# So many violations of one rule are kept as text; all are counted.
KEPT = 5
_TOLERANCE = 1e-6
_ENDINGS = {ending.value for ending in Ending} - {Ending.NONE.value}
_FAILED = {Ending.ENV_ERROR.value, Ending.INFRA_ERROR.value, Ending.TIMEOUT.value}


@dataclass(slots=True)
class SessionRecord:
    """Requests and answers of one session. seq: of the last Reset or Step that was in order. seats: how many
    the examiner plays."""

    environment: str
    bounds: tuple[float, float] | None
    seats: int = 1
    seq: int = -1
    # How often each seq was asked and answered.
    requests: Counter[int] = field(default_factory=Counter)
    answered: Counter[int] = field(default_factory=Counter)
    answers: dict[int, Any] = field(default_factory=dict)
    # Sum of the rewards of each seat so far.
    returns: list[float] = field(init=False)
    ended: bool = False
    # Closed or cancelled, and whether the host has read so for certain.
    cancelled: bool = False
    closed: bool = False
    fenced: bool = False

    def __post_init__(self) -> None:
        self.returns = [0.0] * self.seats


class Judge:
    """Judges the messages of one host. max_text_bytes: the bound that its Welcome gave it."""

    def __init__(self, max_text_bytes: int) -> None:
        self.max_text_bytes = max_text_bytes
        # Sessions that may still be running, and the numbers of those that have ended.
        self.records: dict[int, SessionRecord] = {}
        self.ended: set[int] = set()
        self.violations: dict[str, list[str]] = {}
        self.counted: Counter[str] = Counter()
        # Messages by kind, and sizes of the largest result and observation so far, in bytes.
        self.messages: Counter[str] = Counter()
        self.largest_result = 0
        self.schemas: dict[str, str] = {}
        self._bounds: dict[str, tuple[float, float] | None] = {}

    def violated(self, rule: str, violation: str) -> None:
        """Notes a violation of the check `rule`."""
        self.counted[rule] += 1
        kept = self.violations.setdefault(rule, [])
        if len(kept) < KEPT and violation not in kept:
            kept.append(violation)

    # --- what the examiner does --------------------------------------------------------------

    def opened(self, session: int, environment: str, seats: int = 1) -> None:
        self.records[session] = SessionRecord(environment, self._bounds.get(environment), seats)

    def requested(self, session: int, seq: int, in_order: bool = True) -> None:
        """A Reset (seq 0), a Step, or a repetition of one was sent. in_order: False for a wrong seq."""
        record = self.records[session]
        record.requests[seq] += 1
        if in_order:
            record.seq = max(record.seq, seq)

    def cancelled(self, session: int) -> None:
        self.records[session].cancelled = True

    def closed(self, session: int) -> None:
        self.records[session].closed = True

    def fence(self) -> list[int]:
        """The sessions that are over for the host once it has answered the ping sent now."""
        return [n for n, r in self.records.items() if r.closed or (r.cancelled and not r.fenced)]

    def fenced(self, sessions: list[int]) -> None:
        """The host has read everything that was sent before the ping of `fence`."""
        for session in sessions:
            record = self.records.get(session)
            if record is None:
                continue  # an earlier ping has fenced it
            record.fenced = True
            if record.closed:
                del self.records[session]
                self.ended.add(session)

    # --- what the host says ------------------------------------------------------------------

    def hello(self, hello: Any) -> str:
        """Judges a Hello; why nothing can be tested with it, "" if something can."""
        self.messages["hello"] += 1
        wrong = list(_hello_faults(hello))
        for violation in wrong:
            self.violated("hello", violation)
        for info in hello.environments:
            bounded = info.HasField("min_reward") and info.HasField("max_reward")
            self._bounds[info.name] = (info.min_reward, info.max_reward) if bounded else None
            known = self.schemas.setdefault(info.name, info.schema_hash)
            if known != info.schema_hash:
                violation = f"schema_hash of {info.name} was {known!r} and is {info.schema_hash!r} now"
                self.violated("hello", violation)
        fatal = hello.protocol != PROTOCOL or hello.instance == 0 or not hello.environments
        return wrong[0] if fatal else ""

    def result(self, result: Any) -> bool:
        """Judges a Result; whether it is the answer to something that was asked."""
        self.messages["result"] += 1
        record = self.records.get(result.session)
        if record is None and result.session in self.ended:
            violation = (
                f"a result for session {result.session} seq {result.seq} after the Pong that followed its"
            )
            self.violated("late", f"{violation} Close")
            return False
        if record is None:
            self.violated("answers", f"a result for session {result.session}, which this host never had")
            return False
        where = f"session {result.session} ({record.environment}) seq {result.seq}"
        if not record.requests[result.seq]:
            self.violated("answers", f"a result for {where}, which was not asked; the last was {record.seq}")
            return False
        if record.fenced and not _is_timeout(result):
            self.violated("late", f"a result for {where} after the Pong that followed its Cancel")
            return False
        record.answered[result.seq] += 1
        if record.answered[result.seq] > record.requests[result.seq]:
            self.violated("answers", f"{record.answered[result.seq]} results for {where}, asked once")
            return False
        self._contents(result, record, where)
        return True

    def progress(self, progress: Any) -> bool:
        """Judges a Progress; whether it is of something in progress."""
        self.messages["progress"] += 1
        record = self.records.get(progress.session)
        where = f"session {progress.session} seq {progress.seq}"
        if record is None and progress.session in self.ended:
            self.violated("progress", f"a Progress for {where} after its Close")
            return False
        if record is None or not record.requests[progress.seq]:
            self.violated("progress", f"a Progress for {where}, which was not asked")
            return False
        if record.answered[progress.seq] >= record.requests[progress.seq]:
            self.violated("progress", f"a Progress for {where}, which was answered before it")
            return False
        if record.fenced:
            self.violated("progress", f"a Progress for {where} after its Cancel")
            return False
        if len(progress.message) > MAX_PROGRESS:
            violation = (
                f"a Progress of {len(progress.message)} characters for {where}; at most {MAX_PROGRESS}"
            )
            self.violated("progress", violation)
        return True

    def credit(self, credit: Any) -> None:
        self.messages["credit"] += 1
        if credit.capacity > MAX_CAPACITY:
            self.violated("hello", f"a Credit of {credit.capacity} sessions; at most {MAX_CAPACITY}")

    # --- what a result holds -----------------------------------------------------------------

    def _contents(self, result: Any, record: SessionRecord, where: str) -> None:
        earlier = record.answers.get(result.seq)
        if earlier is not None:
            if earlier != result:
                self.violated("answers", f"{where} was answered again with another result")
            return
        record.answers = {result.seq: result}
        size_bytes = result.ByteSize()
        self.largest_result = max(self.largest_result, size_bytes)
        if size_bytes > self.max_text_bytes:
            self.violated(
                "sizes", f"a result of {size_bytes} bytes for {where}; at most {self.max_text_bytes}"
            )
        for violation in (*_number_faults(result), *_seat_faults(result, record.seats)):
            self.violated("numbers", f"{violation} of {where}")
        for violation in _ending_faults(result):
            self.violated("endings", f"{violation} in {where}")
        if result.seq != record.seq:
            return  # an answer to a wrong seq: it changes nothing
        record.ended = record.ended or result.done
        rewards = result.seat_rewards if record.seats > 1 else [result.reward]
        for seat, reward in enumerate(rewards[: record.seats]):
            record.returns[seat] += reward if math.isfinite(reward) else 0.0
        if record.bounds is None or result.ending not in (Ending.OK.value, Ending.TRUNCATED.value):
            return
        low, high = record.bounds
        for seat, return_ in enumerate(record.returns):
            margin = _TOLERANCE * max(1.0, abs(return_))
            if not low - margin <= return_ <= high + margin:
                whose = f" of seat {seat}" if record.seats > 1 else ""
                violation = (
                    f"return {return_:g}{whose} of {where} is outside of the declared [{low:g}, {high:g}]"
                )
                self.violated("numbers", violation)


def _is_timeout(result: Any) -> bool:
    return result.done and result.ending == Ending.TIMEOUT.value


def _hello_faults(hello: Any) -> Any:
    """Yields the parts of a Hello that a gateway refuses or cannot use."""
    if hello.protocol != PROTOCOL:
        yield f"Hello.protocol is {hello.protocol}, not {PROTOCOL}"
    if not hello.host or len(hello.host) > MAX_NAME:
        yield f"Hello.host {hello.host[:40]!r} is no name of 1 to {MAX_NAME} characters"
    if hello.instance == 0:
        yield "Hello.instance is 0: draw a random one at the host's start"
    if hello.epoch == 0:
        yield "Hello.epoch is 0: the first connection has 1, each later one more"
    if not 1 <= hello.capacity <= MAX_CAPACITY:
        yield f"Hello.capacity is {hello.capacity}, not 1 to {MAX_CAPACITY}"
    if not hello.environments:
        yield "Hello.environments is empty"
    names = Counter(info.name for info in hello.environments)
    for name, count in names.items():
        if count > 1:
            yield f"environment {name!r} is named {count} times"
        if not NAME.match(name):
            yield f"environment name {name[:80]!r} is not valid: letters, digits and . _ - /"
    for info in hello.environments:
        if not info.schema_hash:
            yield f"schema_hash of {info.name} is empty: hosts of one name could not be told apart"
        yield from _info_faults(info)


def _info_faults(info: Any) -> Any:
    if info.HasField("min_reward") != info.HasField("max_reward"):
        yield f"{info.name} declares one bound of its reward only: give both or none"
    elif info.HasField("min_reward") and not info.min_reward <= info.max_reward:
        yield f"{info.name} declares rewards from {info.min_reward:g} to {info.max_reward:g}"
    if info.seats > MAX_SEATS:
        yield f"{info.name} declares {info.seats} seats; at most {MAX_SEATS}"
    if wrong := fault_in_tools(info.tools_json):
        yield f"tools_json of {info.name} {wrong}"


def _number_faults(result: Any) -> Any:
    if not math.isfinite(result.reward):
        yield f"reward {result.reward}"
    for seat, reward in enumerate(result.seat_rewards):
        if not math.isfinite(reward):
            yield f"reward {reward} of seat {seat}"
    for metrics in (result.metrics, *(seat.metrics for seat in result.seat_metrics)):
        for key, value in metrics.items():
            if not math.isfinite(value):
                yield f"metric {key} = {value}"


def _seat_faults(result: Any, seats: int) -> Any:
    """Yields what does not fit the number of seats that are played."""
    played = "one seat is played" if seats == 1 else f"{seats} seats are played"
    if result.observation.seat >= seats:
        yield f"an observation for seat {result.observation.seat}, where {played},"
    expected = 0 if seats == 1 or result.seq == 0 or result.ending in _FAILED else seats
    if len(result.seat_rewards) != expected:
        yield f"{len(result.seat_rewards)} seat_rewards, where {played} and {expected} belong,"
    if len(result.seat_metrics) not in ((0,) if seats == 1 else (0, seats)):
        yield f"{len(result.seat_metrics)} seat_metrics, where {played},"


def _ending_faults(result: Any) -> Any:
    """Yields the faults of a result's `done`, `ending` and dependent fields, a text each."""
    if not result.done:
        if result.ending != Ending.NONE.value:
            yield f"ending {result.ending} on a result that is not done"
        if result.metrics or result.seat_metrics:
            yield "metrics on a result that is not done"
    elif result.ending not in _ENDINGS:
        yield f"done with ending {result.ending}, which is none"
    elif result.ending in _FAILED:
        if result.reward:
            yield f"a reward of {result.reward:g} with ending {Ending(result.ending).name}"
        if not result.message:
            yield f"ending {Ending(result.ending).name} without a message"
    if result.seq == 0 and result.ending in (Ending.OK.value, Ending.TRUNCATED.value):
        yield f"a reset that ends its episode with {Ending(result.ending).name}"
    if result.seq == 0 and result.reward:
        yield f"a reset with reward {result.reward:g}"
    if result.observation.role not in ("", *ROLES):
        yield f"role {result.observation.role!r}, not one of {', '.join(ROLES)}"
