"""What is: every record of the ledger, the indices over them, and what has changed since last stored.

Promise: after any sequence of operations, `restore` of what `take_changes` handed out (applied in
order) gives an equal tables; only clocks (lease and membership deadlines) start anew.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from earl.errors import LedgerError
from earl.ticket_ranges import RangeSet
from services.scheduler.state.deadlines import DeadlineQueue
from services.scheduler.state.record_table import RecordTable
from services.scheduler.state.records import (
    BATCHED,
    LIVE,
    Batch,
    EvaluationRecord,
    Fact,
    Issue,
    LedgerChanges,
    Lives,
    Purpose,
    Record,
    RecordChange,
    RunRecord,
    Ticket,
    TicketState,
    WorkerRecord,
    decode,
    encode,
    ranges_of,
)
from services.scheduler.state.switch_records import StageRecord

HELD = frozenset({TicketState.LEASED, TicketState.READY, TicketState.PLANNED})


class LedgerTables:
    """Records and indices over them. Whatever a transition changes is found when changes are taken.

    Tickets change through `touch`, `move` and `compact`; workers, their lives and issued groups are frozen
    records in tables that notice every change; the few other records are compared with their stored forms.
    """

    def __init__(self) -> None:
        self.run = RunRecord()
        self.batch: Batch | None = None
        self.tickets: dict[int, Ticket] = {}
        # By group, those of whose tickets some were never touched since, and have no record of their own.
        self.issues: RecordTable[int, Issue] = RecordTable()
        self._untouched: dict[int, set[int]] = {}
        self.members: RecordTable[str, WorkerRecord] = RecordTable()
        # By worker name; only the last incarnation of each is not replaced.
        self.lives: RecordTable[str, Lives] = RecordTable()
        self.evaluations: RecordTable[str, EvaluationRecord] = RecordTable()
        # By stage; none for a stage that nobody ever asked anything of.
        self.stages: dict[str, StageRecord] = {}
        # Compacted tickets by bucket: "trained", "evaluated", "dropped:<reason>".
        self.closed: dict[str, RangeSet] = {}
        # Trained tickets that have a record, as stored; and which became so, or no longer are, since.
        self._trained = RangeSet()
        self._trained_since: dict[int, bool] = {}
        # Descriptor keys of dropped trajectories, to be freed with the next committed batch.
        self.freed: list[str] = []
        self.groups: dict[Purpose, dict[int, list[int]]] = {purpose: {} for purpose in Purpose}
        self.ready: Counter[int] = Counter()
        # Groups whose members are all ready.
        self.whole: dict[Purpose, set[int]] = {purpose: set() for purpose in Purpose}
        # Places in the schedule of a purpose that live groups have, and trained tickets with a record.
        self.taken: dict[Purpose, Counter[int]] = {purpose: Counter() for purpose in Purpose}
        # Closed tickets whose records are kept: a checkpoint has yet to hold them.
        self.kept: set[int] = set()
        self.held: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        self.buckets: Counter[str] = Counter()
        self.pending: list[int] = []
        # Monotonic seconds; not stored.
        self.lease_until: DeadlineQueue[int] = DeadlineQueue()
        self.lease_since: dict[int, float] = {}
        self.member_until: DeadlineQueue[str] = DeadlineQueue()
        # The time as the tables's owner told it last, and when each ticket came into its state.
        self.now = 0.0
        self.state_since: dict[int, float] = {}
        # Changed tickets with the heads of their stored records, "" for none.
        self._touched: dict[int, str] = {}
        # Stored forms of the records that are changed in place, to be compared with what they are now.
        self._stored: dict[tuple[str, str], bytes] = {
            ("state", "run"): encode(self.run),
            ("state", "freed"): encode(self.freed),
        }
        # Whether the sets of compacted, and of trained, tickets differ from what is stored.
        self._closed_changed = self._trained_changed = False
        self._facts: list[Fact] = []
        self._moved: set[int] = set()

    # --- writing ----------------------------------------------------------------------------

    def issue(self, issue: Issue) -> None:
        """New tickets, pending. One record says so for a group of several."""
        tickets = issue.tickets()
        if len(tickets) == 1:
            self._touched[issue.first] = ""
        else:
            self.issues[issue.group] = issue
            self._untouched[issue.group] = {ticket.id for ticket in tickets}
        for ticket in tickets:
            self.tickets[ticket.id] = ticket
            self._enter(ticket)

    def touch(self, ticket: Ticket) -> None:
        """The ticket's record is about to change."""
        if ticket.id not in self._touched:
            self._touched[ticket.id] = "" if self._first_touch(ticket) else ticket.head

    def move(self, ticket: Ticket, state: TicketState, reason: str = "") -> None:
        """Changes a ticket's state and every index over it."""
        if ticket.state not in BATCHED or state not in BATCHED:
            self.touch(ticket)
        held = ticket.state in HELD
        self._unindex(ticket, goes=state not in HELD)
        ticket.state, ticket.reason = state, reason
        self._index(ticket, comes=not held)

    def compact(self, ticket: Ticket) -> None:
        """Turns a closed ticket's record into one number of its bucket's set; see `close_ranges`."""
        self.touch(ticket)
        self._unindex(ticket)
        self._moved.add(ticket.id)
        del self.tickets[ticket.id]
        del self.state_since[ticket.id]

    def close_ranges(self, closed: dict[str, RangeSet]) -> None:
        """Replaces the sets of compacted tickets."""
        self.closed = {bucket: ids for bucket, ids in closed.items() if len(ids)}
        self._closed_changed = True

    def state(self, fact: Fact) -> None:
        """States a fact; it travels with the changes that made it true."""
        self._facts.append(fact)

    def take_changes(self) -> LedgerChanges:
        """What is to be stored now; asked again, only what changed in between."""
        records = []
        for number, head in self._touched.items():
            ticket = self.tickets.get(number)
            if ticket is not None:
                records.append(RecordChange("ticket", str(number), head, encode(ticket)))
            elif head:  # otherwise it came and went between two stores
                records.append(RecordChange("ticket", str(number), head, None))
        records += self._changed_tables()
        records += self._changed_in_place()
        changes = LedgerChanges(tuple(records), tuple(self._facts))
        self._touched.clear()
        self._facts.clear()
        return changes

    def _changed_tables(self) -> Iterator[RecordChange]:
        """Frozen records that were set or deleted, and the sets of tickets."""
        tables = (
            ("group", self.issues),
            ("lives", self.lives),
            ("member", self.members),
            ("evaluation", self.evaluations),
        )
        for kind, table in tables:
            for key, record in table.take_changed():
                yield RecordChange(kind, str(key), None, None if record is None else encode(record))
        if self._closed_changed:
            yield RecordChange("state", "closed", None, encode(ranges_of(self.closed)))
        if self._trained_changed:
            yield RecordChange("state", "trained", None, encode(list(self._trained_ranges().ranges)))
        self._closed_changed = self._trained_changed = False

    def _changed_in_place(self) -> Iterator[RecordChange]:
        """Records that transitions change in place: whatever differs from its stored form. They are few."""
        stored, self._stored = self._stored, {}
        for kind, field, record in self._mutable():
            key, before = (kind, field), stored.pop((kind, field), None)
            self._stored[key] = now = encode(record)
            if now != before:
                yield RecordChange(kind, field, None, now)
        for kind, field in stored:
            yield RecordChange(kind, field, None, None)

    def _mutable(self) -> Iterator[tuple[str, str, Record]]:
        """(kind, field, record) of every record that is changed in place."""
        yield "state", "run", self.run
        yield "state", "freed", self.freed
        if self.batch is not None:
            yield "state", "batch", self.batch
        for stage, record in self.stages.items():
            yield "stage", stage, record

    def take_moved(self) -> set[int]:
        """Tickets that came, went or changed their state since this was asked last; at first, all."""
        moved, self._moved = self._moved, set()
        return moved

    # --- reading ----------------------------------------------------------------------------

    def complete(self, purpose: Purpose) -> list[int]:
        """Groups of this purpose whose members are all ready, oldest first."""
        return [group for group in self.groups[purpose] if group in self.whole[purpose]]

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
        accounted = RangeSet.of(self.tickets)
        size = len(accounted)
        for bucket, ids in self.closed.items():
            accounted |= ids
            size += len(ids)
            if len(accounted) != size:
                raise LedgerError(f"tickets of {bucket} are counted twice", "report this as a bug")
        issued = RangeSet([(1, self.run.next_ticket)])
        if accounted != issued:
            raise LedgerError(f"tickets {issued - accounted} of {issued} are nowhere", "report this as a bug")

    # --- restoring --------------------------------------------------------------------------

    def restore(self, records: Iterable[tuple[str, str, bytes]], now: float, lease_s: float) -> None:
        """Fills an empty tables from stored (kind, field, data); leases count anew from `now`."""
        self.now = now
        trained = RangeSet()
        for kind, field, data in records:
            record = decode(kind, field, data)
            if isinstance(record, Issue):
                self.issues.set_unstored(record.group, record)
            elif isinstance(record, Ticket):
                self.tickets[record.id] = record
                head = data.partition(b"|")[0].decode()
                if head != record.head:  # of a scheduler that stored every state with its ticket
                    self._touched[record.id] = head
            elif isinstance(record, WorkerRecord):
                self.members.set_unstored(record.name, record)
            elif isinstance(record, Lives):
                self.lives.set_unstored(field, record)
            elif isinstance(record, EvaluationRecord):
                self.evaluations.set_unstored(record.name, record)
            elif isinstance(record, StageRecord):
                self.stages[field] = record
            elif isinstance(record, RunRecord):
                self.run = record
            elif isinstance(record, Batch):
                self.batch = record
            elif isinstance(record, dict):
                self.closed = {bucket: RangeSet(ranges) for bucket, ranges in record.items()}
            elif field == "trained":
                trained = RangeSet(record)  # type: ignore[arg-type]
            else:
                self.freed = record  # type: ignore[assignment]
        self._restore_untouched()
        planned = frozenset(self.batch.tickets if self.batch else ())
        for number in sorted(self.tickets):
            ticket = self.tickets[number]
            if ticket.state in BATCHED:
                _derive(ticket, number in planned, number in trained)
            self._enter(ticket)
            if ticket.state is TicketState.LEASED:
                self.lease_since[number] = now
                self.lease_until.set(number, now + lease_s)
        self._trained_ranges()
        self._trained_changed = False
        self._stored = {(kind, field): encode(record) for kind, field, record in self._mutable()}

    def _restore_untouched(self) -> None:
        """Tickets of which only their group's record tells."""
        for group, issue in self.issues.items():
            untouched = [
                ticket
                for ticket in issue.tickets()
                if ticket.id not in self.tickets
                and not any(ticket.id in closed for closed in self.closed.values())
            ]
            self._untouched[group] = {ticket.id for ticket in untouched}
            self.tickets |= {ticket.id: ticket for ticket in untouched}

    def _first_touch(self, ticket: Ticket) -> bool:
        """Whether the ticket has no record yet; with the last of a group to get one the group's own goes."""
        untouched = self._untouched.get(ticket.group)
        if untouched is None or ticket.id not in untouched:
            return False
        untouched.remove(ticket.id)
        if not untouched:
            del self._untouched[ticket.group], self.issues[ticket.group]
        return True

    def _enter(self, ticket: Ticket) -> None:
        """A ticket that no index knows."""
        if ticket.state in LIVE:
            members = self.groups[ticket.purpose].setdefault(ticket.group, [])
            if not members:
                self.taken[ticket.purpose][ticket.index] += 1
            members.append(ticket.id)
            self.whole[ticket.purpose].discard(ticket.group)
        self._index(ticket)

    def _index(self, ticket: Ticket, *, comes: bool = True) -> None:
        """comes: it was not its worker's before."""
        number, state = ticket.id, ticket.state
        self._moved.add(number)
        self.state_since[number] = self.now
        self.buckets[ticket.bucket] += 1
        if state is TicketState.PENDING:
            heapq.heappush(self.pending, number)
        elif state in HELD:
            if comes:
                self.held[ticket.worker, ticket.incarnation].add(number)
            if state is TicketState.READY:
                self.ready[ticket.group] += 1
                self._judge(ticket)
        else:
            self.kept.add(number)
            if state is TicketState.TRAINED:
                self._count_trained(number, True)
                self.taken[ticket.purpose][ticket.index] += 1
            self._leave_group(ticket)

    def _unindex(self, ticket: Ticket, *, goes: bool = True) -> None:
        """goes: it is its worker's no longer."""
        number, state = ticket.id, ticket.state
        self.buckets[ticket.bucket] -= 1
        if state is TicketState.PENDING:
            return  # it is left in the heap, whose entries are looked at when they come up
        if state not in HELD:
            self.kept.discard(number)
            if state is TicketState.TRAINED:
                self._count_trained(number, False)
                self._give_up_place(ticket)
            return
        if goes:
            holder = ticket.worker, ticket.incarnation
            held = self.held[holder]
            held.discard(number)
            if not held:
                del self.held[holder]
        if state is TicketState.READY:
            self.ready[ticket.group] -= 1
            self.whole[ticket.purpose].discard(ticket.group)
        elif state is TicketState.LEASED:
            self.lease_until.drop(number)
            self.lease_since.pop(number, None)

    def _count_trained(self, number: int, trained: bool) -> None:
        self._trained_since[number] = trained
        self._trained_changed = True

    def _trained_ranges(self) -> RangeSet:
        since, self._trained_since = self._trained_since, {}
        gone = RangeSet.of(number for number, trained in since.items() if not trained)
        come = RangeSet.of(number for number, trained in since.items() if trained)
        self._trained = (self._trained - gone) | come
        return self._trained

    def _leave_group(self, ticket: Ticket) -> None:
        members = self.groups[ticket.purpose].get(ticket.group)
        if members is not None and ticket.id in members:
            members.remove(ticket.id)
            if members:
                self._judge(ticket)
                return
            del self.groups[ticket.purpose][ticket.group]
            del self.ready[ticket.group]
            self.whole[ticket.purpose].discard(ticket.group)
            self._give_up_place(ticket)

    def _give_up_place(self, ticket: Ticket) -> None:
        taken = self.taken[ticket.purpose]
        taken[ticket.index] -= 1
        if not taken[ticket.index]:
            del taken[ticket.index]

    def _judge(self, ticket: Ticket) -> None:
        """A member of the ticket's group became ready, or left it: whether all that are left are ready."""
        group = ticket.group
        if self.ready[group] == len(self.groups[ticket.purpose][group]):
            self.whole[ticket.purpose].add(group)


def _derive(ticket: Ticket, planned: bool, trained: bool) -> None:
    """The state of one that was ready when its record was stored, or that was stored again since."""
    if trained or ticket.state is TicketState.TRAINED:
        ticket.state, ticket.result = TicketState.TRAINED, None
    else:
        ticket.state = TicketState.PLANNED if planned else TicketState.READY
