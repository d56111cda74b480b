"""Follows a history event by event: the state of every ticket, and whether an event may follow on it. Pure.

    issued ─► pending ─► leased ─► ready ─► planned ─► trained      any of them ─► dropped(reason)
                 ▲         │         │        │
                 └─────────┴─────────┘        └─ the batch is dissolved ─► ready
    evaluation: leased ─► evaluated      replay: planned ─► replayed

Only a trainer that starts changes what has ended: a ticket that its parameters were trained on is trained
from then on, and one that they were not trained on is no longer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from earl.history import format as form
from earl.history.format import Event
from earl.ticket_ranges import RangeSet

# Buckets of tickets that have ended; a dropped one's has its reason.
TRAINED, REPLAYED, EVALUATED = form.TRAINED, form.REPLAYED, form.EVALUATED
ROLLED_BACK, FORGOTTEN = "dropped:rolled_back", "dropped:forgotten"
# A lease may be late by so long: the ledger looks for what has expired now and then.
LATE_S = 30.0
# Time between two rounds counts at most so much: for longer the scheduler may have stood still.
LONGEST_ROUND_S = 10.0


class TicketTrack:
    """A ticket that has not ended. leased_at: on the clock of HistoryState."""

    __slots__ = ("attempt", "floor", "group", "leased_at", "purpose", "state")

    def __init__(self, state: str, group: int, purpose: str, floor: int, attempt: int = 0) -> None:
        self.state, self.group, self.purpose, self.floor = state, group, purpose, floor
        self.attempt, self.leased_at = attempt, 0.0


class HistoryState:
    """The state after so many events; `apply` raises ValueError for one that breaks a promise.

    rules: of the newest header: staleness (versions), lease_s, episode_s (seconds; 0 leaves waits out).
    """

    def __init__(self) -> None:
        self.rules: Mapping[str, Any] = {}
        self.live: dict[int, TicketTrack] = {}
        # The bucket of every ticket that has ended.
        self.ended: dict[int, str] = {}
        self.groups: dict[int, set[int]] = {}
        self.next_ticket, self.version, self.published, self.fence = 1, 0, 0, 0
        # The open batch: (id, version); tickets that are planned.
        self.batch: tuple[int, int] | None = None
        self.planned: set[int] = set()
        self.last_batch = 0
        self.clock_s = 0.0
        self.events = 0
        # While a trainer starts: what its parameters were trained on.
        self._consumed: RangeSet | None = None
        self._apply: dict[str, Callable[..., None]] = {
            form.ISSUED: self._issued, form.REPLAY: self._replay, form.LEASED: self._leased,
            form.PENDING: self._pending, form.READY: self._ready, form.PLANNED: self._planned,
            form.BATCH: self._batch, form.TRAINED: self._trained, form.COMMIT: self._commit,
            form.REPLAYED: self._replayed, form.DISSOLVE: self._dissolve,
            form.EVALUATED: self._evaluated,
            form.DROPPED: self._dropped, form.PUBLISH: self._publish,
            form.RECONCILE: self._reconcile, form.RECONCILED: self._reconciled,
        }  # fmt: skip

    def counts(self) -> dict[str, int]:
        """Tickets by state or bucket; their sum is the number of tickets issued."""
        counts = Counter(track.state for track in self.live.values())
        counts.update(self.ended.values())
        return dict(sorted(counts.items()))

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes the state of a header over."""
        self.version, self.published = state["version"], state["published"]
        self.fence, self.next_ticket = state["fence"], state["next_ticket"]
        self.batch = tuple(state["batch"]) if state["batch"] else None
        for table in (self.live, self.groups, self.ended, self.planned):
            table.clear()
        for bucket, ranges in state["closed"].items():
            self.ended.update((number, bucket) for number in RangeSet(ranges))
        for number, now, group, purpose, attempt, floor, reason in state["tickets"]:
            bucket = bucket_of(now, purpose, reason)
            if bucket:
                self.ended[number] = bucket
                continue
            track = self.live[number] = TicketTrack(now, group, purpose, floor, attempt)
            track.leased_at = self.clock_s
            self.groups.setdefault(group, set()).add(number)
            if now == form.PLANNED:
                self.planned.add(number)

    def differs(self, state: Mapping[str, Any]) -> str:
        """Compares with a header's state; "" if it is the same, else the first difference."""
        other = HistoryState()
        other.load(state)
        for name in ("version", "next_ticket", "fence", "batch"):
            if getattr(self, name) != getattr(other, name):
                return f"{name} is {getattr(self, name)}, the header has {getattr(other, name)}"
        if self.counts() != other.counts():
            return f"tickets are {self.counts()}, the header has {other.counts()}"
        for number, track in other.live.items():
            mine = self.live.get(number)
            if mine is None or (mine.state, mine.attempt) != (track.state, track.attempt):
                return (
                    f"ticket {number} is {mine.state if mine else 'not live'}, the header has {track.state}"
                )
        return ""

    def begin_life(self) -> None:
        """A scheduler took over: leases have their full time again."""
        for track in self.live.values():
            track.leased_at = self.clock_s

    def apply(self, event: Event) -> None:
        """Takes an event in. Raises ValueError that says which promise it breaks."""
        self.events += 1
        kind, *rest = event
        handler = self._apply.get(kind)
        if handler is None:
            raise ValueError(f"{kind!r} is no kind of event")
        handler(*rest)

    def end_round(self) -> None:
        """All of a round has been applied. Raises ValueError for what may not be left between rounds."""
        if self._consumed is not None:
            self._consumed = None
            raise ValueError("a trainer began to start in a round and was not done in it")
        if self.planned and self.batch is None:
            raise ValueError(f"tickets {_few(self.planned)} are planned, and no batch is")

    def check_waits(self) -> None:
        """Raises ValueError for leases that are older than may be; each is told once."""
        bound_s = self.rules.get("episode_s", 0.0)
        if not bound_s:
            return
        bound_s += self.rules.get("lease_s", 0.0) + LATE_S
        late = {
            number
            for number, track in self.live.items()
            if track.state == form.LEASED and self.clock_s - track.leased_at > bound_s
        }
        for number in late:
            self.live[number].leased_at = math.inf
        if late:
            raise ValueError(f"tickets {_few(late)} were leased for more than {bound_s:.0f} s")

    # --- events -----------------------------------------------------------------------------

    def _issued(self, first: int, count: int, group: int, purpose: str, oldest: int) -> None:
        if first != self.next_ticket:
            raise ValueError(f"ticket {first} is issued where {self.next_ticket} is next")
        for number in range(first, first + count):
            self.live[number] = TicketTrack(form.PENDING, group, purpose, oldest)
        self.groups.setdefault(group, set()).update(range(first, first + count))
        self.next_ticket = first + count

    def _replay(self, number: int, group: int, source: int, attempt: int) -> None:
        if number != self.next_ticket:
            raise ValueError(f"replay {number} is issued where {self.next_ticket} is next")
        if self.ended.get(source) != TRAINED:
            known = self.ended.get(source, "live")
            raise ValueError(f"replay {number} trains on ticket {source} again, which is {known}")
        self.live[number] = TicketTrack(form.PLANNED, group, "replay", self.version, attempt)
        self.groups.setdefault(group, set()).add(number)
        self.planned.add(number)
        self.next_ticket = number + 1

    def _leased(self, number: int, attempt: int, fence: int, _: str, __: int) -> None:
        track = self._from(number, form.LEASED, form.PENDING)
        if fence <= self.fence:
            raise ValueError(f"ticket {number} is leased with fence {fence}, and {self.fence} was given out")
        if attempt != track.attempt + 1:
            raise ValueError(f"attempt {attempt} at ticket {number} follows on attempt {track.attempt}")
        self.fence = fence
        track.state, track.attempt, track.leased_at = form.LEASED, attempt, self.clock_s

    def _pending(self, number: int) -> None:
        track = self._from(number, form.PENDING, form.LEASED, form.READY)
        track.state = form.PENDING

    def _ready(self, number: int, attempt: int, oldest: int) -> None:
        track = self._from(number, form.READY, form.LEASED, form.PLANNED)
        if attempt != track.attempt:
            raise ValueError(
                f"attempt {attempt} at ticket {number} is accepted, and {track.attempt} is leased"
            )
        if track.purpose == form.EVALUATE:
            raise ValueError(f"ticket {number} is of an evaluation, and ready to be trained")
        if track.state == form.PLANNED:
            self.planned.discard(number)
        track.state, track.floor = form.READY, oldest

    def _planned(self, number: int) -> None:
        track = self._from(number, form.PLANNED, form.READY)
        if self.batch is not None:
            raise ValueError(f"ticket {number} is planned while batch {self.batch[0]} is open")
        track.state = form.PLANNED
        self.planned.add(number)

    def _batch(self, batch: int, version: int, purpose: str) -> None:
        if self.batch is not None:
            raise ValueError(f"batch {batch} is planned while batch {self.batch[0]} is open")
        if batch <= self.last_batch or version != self.version:
            raise ValueError(
                f"batch {batch} is planned at version {version}, after batch {self.last_batch}, where "
                f"version {self.version} is trained"
            )
        self.batch, self.last_batch = (batch, version), batch
        for number in self.planned:
            track = self.live[number]
            if track.purpose == "replay":
                continue
            if track.purpose != purpose:
                raise ValueError(f"ticket {number} of {track.purpose} is in a batch of {purpose}")
            rest = self.groups[track.group] - self.planned
            if purpose == form.TRAIN and rest:
                raise ValueError(f"ticket {number} is planned without {_few(rest)} of its group")
            stale = version - track.floor
            if purpose == form.TRAIN and stale > self.rules.get("staleness", stale):
                raise ValueError(
                    f"ticket {number} has tokens of version {track.floor}, and is trained at {version}: "
                    f"staleness is {self.rules['staleness']} at most"
                )

    def _trained(self, number: int, bucket: str = TRAINED) -> None:
        track = self.live.get(number)
        if self._consumed is not None:
            if number not in self._consumed:
                raise ValueError(f"ticket {number} is trained, and the trainer's parameters are not")
            if track is None and self.ended.get(number, TRAINED) in (TRAINED, REPLAYED):
                raise ValueError(f"ticket {number} is trained a second time")
            self._end(number, bucket)
            return
        self._from(number, bucket, form.PLANNED)
        if self.batch is None:
            raise ValueError(f"ticket {number} is {bucket}, and no batch is open")
        self._end(number, bucket)

    def _replayed(self, number: int) -> None:
        self._trained(number, REPLAYED)

    def _commit(self, batch: int, version: int) -> None:
        if self.batch is None or self.batch[0] != batch:
            opened = f"batch {self.batch[0]}" if self.batch else "none"
            raise ValueError(f"batch {batch} is committed, and {opened} is open")
        if version != self.batch[1] + 1:
            raise ValueError(f"batch {batch} of version {self.batch[1]} makes version {version}")
        if self.planned:
            raise ValueError(f"batch {batch} is committed without its tickets {_few(self.planned)}")
        self.batch, self.version = None, version

    def _dissolve(self, batch: int) -> None:
        if self.batch is None or self.batch[0] != batch:
            raise ValueError(f"batch {batch} is dissolved, and is not open")
        self.batch = None

    def _evaluated(self, number: int) -> None:
        track = self._from(number, form.EVALUATED, form.LEASED)
        if track.purpose != form.EVALUATE:
            raise ValueError(f"ticket {number} of {track.purpose} is evaluated")
        self._end(number, EVALUATED)

    def _dropped(self, number: int, reason: str) -> None:
        if self._consumed is not None and self.ended.get(number) in (TRAINED, REPLAYED):
            if number in self._consumed:
                raise ValueError(f"ticket {number} is rolled back, and the trainer's parameters have it")
            self.ended[number] = f"dropped:{reason}"
            return
        self._from(number, form.DROPPED)
        self._end(number, f"dropped:{reason}")

    def _publish(self, version: int) -> None:
        if version < self.published:
            raise ValueError(f"version {version} is published after version {self.published}")
        self.published = version

    def _reconcile(self, version: int, consumed: Sequence[Sequence[int]], _: str, __: int) -> None:
        if self._consumed is not None:
            raise ValueError("a trainer starts while another one does")
        self._consumed = RangeSet((first, stop) for first, stop in consumed)
        self.published = min(self.published, version)

    def _reconciled(self, version: int) -> None:
        consumed, self._consumed = self._consumed, None
        if consumed is None:
            raise ValueError("a trainer is done starting that did not begin to")
        # The ledger has only numbers of most of what has ended: the manifest says what becomes of them.
        for number in range(self.next_ticket, consumed.stop):
            self.ended[number] = TRAINED if number in consumed else FORGOTTEN
        self.next_ticket = max(self.next_ticket, consumed.stop)
        lost = [number for number, bucket in self.ended.items()
                if bucket in (TRAINED, REPLAYED) and number not in consumed]  # fmt: skip
        self.ended |= dict.fromkeys(lost, ROLLED_BACK)
        for number in consumed:
            if number in self.live:
                raise ValueError(
                    f"the trainer's parameters were trained on ticket {number}, which is still "
                    f"{self.live[number].state}"
                )
            if self.ended[number] not in (TRAINED, REPLAYED):
                self.ended[number] = TRAINED
        if self.batch is not None:
            raise ValueError(f"a trainer started, and batch {self.batch[0]} is still open")
        self.version = version

    # --- within -----------------------------------------------------------------------------

    def _from(self, number: int, state: str, *before: str) -> TicketTrack:
        """The ticket that comes into a state. before: those that it may come from, none: any live one."""
        track = self.live.get(number)
        if track is None:
            known = self.ended.get(number, "never issued")
            raise ValueError(f"ticket {number} becomes {state}, and is {known}")
        if before and track.state not in before:
            raise ValueError(f"ticket {number} becomes {state}, and is {track.state}")
        return track

    def _end(self, number: int, bucket: str) -> None:
        track = self.live.pop(number, None)
        self.planned.discard(number)
        self.ended[number] = bucket
        if track is not None:
            members = self.groups[track.group]
            members.discard(number)
            if not members:
                del self.groups[track.group]


def bucket_of(state: str, purpose: str, reason: str) -> str:
    """The bucket of a ticket in this state; "" if it has not ended."""
    if state == form.TRAINED:
        return REPLAYED if purpose == "replay" else TRAINED
    if state == form.DROPPED:
        return f"dropped:{reason}"
    return EVALUATED if state == form.EVALUATED else ""


def _few(numbers: set[int]) -> str:
    shown = sorted(numbers)[:3]
    return ", ".join(map(str, shown)) + (" …" if len(numbers) > len(shown) else "")
