"""What is: every record of the ledger, the indices over them, and what has changed since last stored.

Promise: after any sequence of operations, `restore` of what `take_changes` handed out (applied in
order) gives an equal book; only clocks (lease and membership deadlines) start anew.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable

from earl.errors import LedgerError
from services.scheduler.ranges import RangeSet
from services.scheduler.records import (
    LIVE,
    Batch,
    Change,
    Changes,
    Evaluation,
    Fact,
    Lives,
    Member,
    Purpose,
    Run,
    State,
    Ticket,
    decode,
    encode,
    ranges_of,
)
from services.scheduler.switches import Course

HELD = frozenset({State.LEASED, State.READY, State.PLANNED})


class Book:
    """Records and indices. Only the ledger's transitions write to it, through these methods."""

    def __init__(self) -> None:
        self.run = Run()
        self.batch: Batch | None = None
        self.tickets: dict[int, Ticket] = {}
        self.members: dict[str, Member] = {}
        # By worker name; only the last incarnation of each is not replaced.
        self.lives: dict[str, Lives] = {}
        self.evaluations: dict[str, Evaluation] = {}
        # By stage; none for a stage that nobody ever asked anything of.
        self.courses: dict[str, Course] = {}
        # Compacted tickets by bucket: "trained", "evaluated", "dropped:<reason>".
        self.closed: dict[str, RangeSet] = {}
        # Descriptor keys of dropped trajectories, to be freed with the next committed batch.
        self.freed: list[str] = []
        self.groups: dict[Purpose, dict[int, list[int]]] = {purpose: {} for purpose in Purpose}
        self.ready: Counter[int] = Counter()
        self.held: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        self.buckets: Counter[str] = Counter()
        self.pending: list[int] = []
        # Monotonic seconds; not stored.
        self.lease_until: dict[int, float] = {}
        self.lease_since: dict[int, float] = {}
        self.member_until: dict[str, float] = {}
        self._dirty: dict[tuple[str, str], str | None] = {}
        self._facts: list[Fact] = []
        self._moved: set[int] = set()

    # --- writing ----------------------------------------------------------------------------

    def add(self, ticket: Ticket) -> None:
        """A new ticket, pending."""
        self._dirty.setdefault(("ticket", str(ticket.id)), "")
        self.tickets[ticket.id] = ticket
        self._index(ticket)

    def touch(self, ticket: Ticket) -> None:
        """The ticket's record is about to change."""
        key = ("ticket", str(ticket.id))
        if key not in self._dirty:
            self._dirty[key] = ticket.head

    def move(self, ticket: Ticket, state: State, reason: str = "") -> None:
        """Changes a ticket's state and every index over it."""
        self.touch(ticket)
        self._unindex(ticket)
        ticket.state, ticket.reason = state, reason
        self._index(ticket)

    def compact(self, ticket: Ticket) -> None:
        """Turns a closed ticket's record into one number of its bucket's set; see `close_ranges`."""
        self.touch(ticket)
        self._unindex(ticket)
        self._moved.add(ticket.id)
        del self.tickets[ticket.id]

    def close_ranges(self, closed: dict[str, RangeSet]) -> None:
        """Replaces the sets of compacted tickets."""
        self.closed = {bucket: ids for bucket, ids in closed.items() if len(ids)}
        self.write("state", "closed")

    def write(self, kind: str, field: str) -> None:
        """A record other than a ticket has changed."""
        self._dirty.setdefault((kind, field), None)

    def state(self, fact: Fact) -> None:
        """States a fact; it travels with the changes that made it true."""
        self._facts.append(fact)

    def take_changes(self) -> Changes:
        """What is to be stored now; asked again, only what changed in between."""
        records = []
        for (kind, field), expected in self._dirty.items():
            record = self._record(kind, field)
            if record is None and expected == "":
                continue  # came and went between two stores
            records.append(Change(kind, field, expected, None if record is None else encode(record)))
        changes = Changes(tuple(records), tuple(self._facts))
        self._dirty.clear()
        self._facts.clear()
        return changes

    def take_moved(self) -> set[int]:
        """Tickets that came, went or changed their state since this was asked last; at first, all."""
        moved, self._moved = self._moved, set()
        return moved

    # --- reading ----------------------------------------------------------------------------

    def complete(self, purpose: Purpose) -> list[int]:
        """Groups of this purpose whose members are all ready, oldest first."""
        return [group for group, members in self.groups[purpose].items() if self.ready[group] == len(members)]

    def place(self, purpose: Purpose, group: int) -> int:
        """A live group's place in the schedule of its purpose."""
        return self.tickets[self.groups[purpose][group][0]].index

    def ids(self, bucket: str) -> RangeSet:
        """All ticket ids of a bucket, compacted or not."""
        kept = RangeSet.of(ticket.id for ticket in self.tickets.values() if ticket.bucket == bucket)
        return kept | self.closed.get(bucket, RangeSet())

    def counts(self) -> dict[str, int]:
        """Tickets by bucket. Their sum is the number of tickets issued."""
        totals = Counter({bucket: count for bucket, count in self.buckets.items() if count})
        for bucket, ids in self.closed.items():
            totals[bucket] += len(ids)
        return dict(totals)

    def check(self) -> None:
        """Raises LedgerError unless issued = trained ⊎ evaluated ⊎ dropped ⊎ live, id by id."""
        seen = RangeSet.of(self.tickets)
        size = len(seen)
        for bucket, ids in self.closed.items():
            seen |= ids
            size += len(ids)
            if len(seen) != size:
                raise LedgerError(f"tickets of {bucket} are counted twice", "report this as a bug")
        issued = RangeSet([(1, self.run.next_ticket)])
        if seen != issued:
            raise LedgerError(f"tickets {issued - seen} of {issued} are nowhere", "report this as a bug")

    # --- restoring --------------------------------------------------------------------------

    def restore(
        self, records: Iterable[tuple[str, str, bytes]], now: float, lease_s: float, member_s: float
    ) -> None:
        """Fills an empty book from stored (kind, field, data); deadlines count anew from `now`."""
        for kind, field, data in records:
            record = decode(kind, field, data)
            if isinstance(record, Ticket):
                self.tickets[record.id] = record
            elif isinstance(record, Member):
                self.members[record.name] = record
                self.member_until[record.name] = now + member_s
            elif isinstance(record, Lives):
                self.lives[field] = record
            elif isinstance(record, Evaluation):
                self.evaluations[record.name] = record
            elif isinstance(record, Course):
                self.courses[field] = record
            elif isinstance(record, Run):
                self.run = record
            elif isinstance(record, Batch):
                self.batch = record
            elif isinstance(record, dict):
                self.closed = {bucket: RangeSet(ranges) for bucket, ranges in record.items()}
            else:
                self.freed = record
        for number in sorted(self.tickets):
            ticket = self.tickets[number]
            self._index(ticket)
            if ticket.state is State.LEASED:
                self.lease_since[number] = now
                self.lease_until[number] = now + lease_s

    def _record(self, kind: str, field: str):
        if kind == "ticket":
            return self.tickets.get(int(field))
        if kind == "member":
            return self.members.get(field)
        if kind == "lives":
            return self.lives.get(field)
        if kind == "evaluation":
            return self.evaluations.get(field)
        if kind == "stage":
            return self.courses.get(field)
        return {
            "run": self.run,
            "batch": self.batch,
            "closed": ranges_of(self.closed),
            "freed": self.freed,
        }[field]

    def _index(self, ticket: Ticket) -> None:
        self._moved.add(ticket.id)
        self.buckets[ticket.bucket] += 1
        if ticket.state not in LIVE:
            self._leave_group(ticket)
            return
        members = self.groups[ticket.purpose].setdefault(ticket.group, [])
        if ticket.id not in members:
            members.append(ticket.id)
        if ticket.state is State.READY:
            self.ready[ticket.group] += 1
        if ticket.state in HELD:
            self.held[ticket.worker, ticket.incarnation].add(ticket.id)
        else:
            heapq.heappush(self.pending, ticket.id)

    def _leave_group(self, ticket: Ticket) -> None:
        groups = self.groups[ticket.purpose]
        members = groups.get(ticket.group)
        if members is not None and ticket.id in members:
            members.remove(ticket.id)
            if not members:
                del groups[ticket.group]
                del self.ready[ticket.group]

    def _unindex(self, ticket: Ticket) -> None:
        self.buckets[ticket.bucket] -= 1
        if ticket.state in HELD:
            holder = ticket.worker, ticket.incarnation
            self.held[holder].discard(ticket.id)
            if not self.held[holder]:
                del self.held[holder]
        if ticket.state is State.READY:
            self.ready[ticket.group] -= 1
        if ticket.state is State.LEASED:
            self.lease_until.pop(ticket.id, None)
            self.lease_since.pop(ticket.id, None)
