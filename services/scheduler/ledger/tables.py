"""Every record of the ledger, the indices over them, and the changes since the last write.

Promise: after any sequence of operations, `restore` of what `take_changes` handed out (applied in
order) gives equal tables; only clocks (lease and membership deadlines) start again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec import structs

from earl.ticket_ranges import RangeSet
from services.scheduler.ledger.pending import PendingTickets
from services.scheduler.ledger.ticket_fields import derive_state, set_fields
from services.scheduler.ledger.transitions import TransitionLog
from services.scheduler.state.deadlines import DeadlineQueue
from services.scheduler.state.device_move import DeviceMove
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.facts import Fact
from services.scheduler.state.group_lengths import StepLengths
from services.scheduler.state.outcomes import StepOutcomes
from services.scheduler.state.record_table import RecordTable
from services.scheduler.state.replay_groups import ReplayGroup
from services.scheduler.state.run import Batch, RunCounters
from services.scheduler.state.stored import LedgerChanges, RecordChange, decode, encode, ranges_of
from services.scheduler.state.switch_records import StageRecord
from services.scheduler.state.tickets import BATCHED, LIVE, Issue, Purpose, Ticket, TicketState
from services.scheduler.state.workers import Incarnations, WorkerRecord

HELD = frozenset({TicketState.LEASED, TicketState.READY, TicketState.PLANNED})
# Kinds of records whose keys are numbers.
NUMBERED = frozenset({"group", "outcome", "lengths", "replay"})
# Fields of a ticket that indices depend on.
INDEXED = frozenset({"id", "group", "purpose", "index", "state", "reason", "worker", "incarnation"})


class LedgerTables:
    """Records and indices over them. Whatever a transition changes is found when changes are taken.

    Every record but three is frozen. Tickets change through `change`, `move` and `compact`, stages and
    workers through `change_stage` and `change_worker`; lives, evaluations and issued groups are replaced in
    tables that notice it. The three, `run`, `batch` and `freed`, are compared with their stored forms.
    `tickets` and `closed` are views that cannot be written.
    """

    def __init__(self, pending: PendingTickets | None = None) -> None:
        self.run = RunCounters()
        self.batch: Batch | None = None
        self._tickets: dict[int, Ticket] = {}
        self.tickets: Mapping[int, Ticket] = MappingProxyType(self._tickets)
        # By group, those of whose tickets some were never touched since, and have no record of their own.
        self.issues: RecordTable[int, Issue] = RecordTable()
        self._untouched: dict[int, set[int]] = {}
        self.workers: RecordTable[str, WorkerRecord] = RecordTable()
        # By worker name; only the last incarnation of each is not replaced.
        self.incarnations: RecordTable[str, Incarnations] = RecordTable()
        self.evaluations: RecordTable[str, EvaluationRecord] = RecordTable()
        # By stage; none for a stage that nobody ever asked anything of.
        self.stages: RecordTable[str, StageRecord] = RecordTable()
        # By step of training, what its groups came to; only with a curriculum.
        self.outcomes: RecordTable[int, StepOutcomes] = RecordTable()
        # By step of training, the lengths of its groups; none with length_order = "drawn".
        self.lengths: RecordTable[int, StepLengths] = RecordTable()
        # By group, those that may be trained again, or might after a roll-back; only with replay.reuse.
        self.replays: RecordTable[int, ReplayGroup] = RecordTable()
        # By kind, the tables of frozen records.
        self._frozen: dict[str, RecordTable[Any, Any]] = {
            "group": self.issues, "lives": self.incarnations, "member": self.workers,
            "evaluation": self.evaluations, "stage": self.stages, "outcome": self.outcomes,
            "lengths": self.lengths, "replay": self.replays,
        }  # fmt: skip
        # Compacted tickets by bucket: "trained", "replayed", "evaluated", "dropped:<reason>".
        self.closed: Mapping[str, RangeSet] = MappingProxyType({})
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
        self.pending = PendingTickets() if pending is None else pending
        # Monotonic seconds; not stored.
        self.lease_until: DeadlineQueue[int] = DeadlineQueue()
        self.lease_since: dict[int, float] = {}
        self.worker_until: DeadlineQueue[str] = DeadlineQueue()
        # The time that the tables' owner passed last, and when each ticket came into its state.
        self.now = 0.0
        self.state_since: dict[int, float] = {}
        # Changed tickets with the heads of their stored records, "" for none.
        self._touched: dict[int, str] = {}
        # Stored forms of the records that are changed in place, to be compared with what they are now.
        self._stored = self._encoded()
        # Whether the sets of compacted, and of trained, tickets differ from what is stored.
        self._closed_changed = self._trained_changed = False
        self._facts: list[Fact] = []
        self.log = TransitionLog()
        self._moved: set[int] = set()

    # --- writing ----------------------------------------------------------------------------

    def issue(self, issue: Issue) -> None:
        """New tickets, pending. One record says so for a group of several."""
        tickets = issue.tickets()
        if len(tickets) > 1:
            self.issues[issue.group] = issue
            self._untouched[issue.group] = {ticket.id for ticket in tickets}
        self.admit(tickets, stored=len(tickets) == 1)

    def admit(self, tickets: Sequence[Ticket], *, stored: bool = True) -> None:
        """New tickets in any live state. stored: each in a record of its own."""
        self.log.admitted(tickets)
        for ticket in tickets:
            if stored:
                self._touched[ticket.id] = ""
            self._tickets[ticket.id] = ticket
            self._enter(ticket)

    def change(self, ticket: Ticket, **fields: Any) -> None:
        """Changes fields of a ticket that no index depends on. Raises TypeError for another (INDEXED)."""
        if not INDEXED.isdisjoint(fields):
            raise TypeError(f"{', '.join(INDEXED & fields.keys())}: a change of these is a move")
        self._touch(ticket)
        set_fields(ticket, fields)

    def move(self, ticket: Ticket, state: TicketState, reason: str = "", **fields: Any) -> None:
        """Changes a ticket's state, other fields with it, and every index over it.

        Between states of BATCHED the stored record stays as it is if nothing but the result changes: the
        batch and the set of trained tickets tell the state, and that a trained ticket has no result.
        """
        if ticket.state not in BATCHED or state not in BATCHED or fields.keys() - {"result"}:
            self._touch(ticket)
        held = ticket.state in HELD
        self._unindex(ticket, leaves=state not in HELD)
        set_fields(ticket, {"state": state, "reason": reason, **fields})
        self._index(ticket, joins=not held)
        self.log.moved(ticket)

    def change_stage(self, stage: str, **fields: Any) -> None:
        """Changes what is kept of a stage, of which nothing may be kept yet."""
        self.stages[stage] = structs.replace(self.stages.get(stage) or StageRecord(), **fields)

    def change_move(self, move: DeviceMove) -> None:
        """Replaces what is kept of the last move of devices."""
        self.run.move = move

    def change_worker(self, name: str, **fields: Any) -> None:
        """Changes what is kept of a worker."""
        self.workers[name] = structs.replace(self.workers[name], **fields)

    def compact(self, ticket: Ticket) -> None:
        """Turns a closed ticket's record into one number of its bucket's set; see `close_ranges`."""
        self._touch(ticket)
        self._unindex(ticket)
        self._moved.add(ticket.id)
        del self._tickets[ticket.id]
        del self.state_since[ticket.id]

    def close_ranges(self, closed: Mapping[str, RangeSet]) -> None:
        """Replaces the sets of compacted tickets."""
        self.closed = MappingProxyType({bucket: ids for bucket, ids in closed.items() if len(ids)})
        self._closed_changed = True

    def record_fact(self, fact: Fact) -> None:
        """Records a fact; it travels with the changes that made it true."""
        self._facts.append(fact)

    def take_changes(self) -> LedgerChanges:
        """Returns the changes to store, and starts collecting anew."""
        records = []
        for number, head in self._touched.items():
            ticket = self.tickets.get(number)
            if ticket is not None:
                records.append(RecordChange("ticket", str(number), head, encode(ticket)))
            elif head:  # otherwise it came and went between two stores
                records.append(RecordChange("ticket", str(number), head, None))
        records += self._changed_tables()
        records += self._changed_in_place()
        changes = LedgerChanges(tuple(records), tuple(self._facts), self.log.take())
        self._touched.clear()
        self._facts.clear()
        return changes

    def _changed_tables(self) -> Iterator[RecordChange]:
        """Frozen records that were set or deleted, and the sets of tickets."""
        for kind, table in self._frozen.items():
            for key, record in table.take_changed():
                yield RecordChange(kind, str(key), None, None if record is None else encode(record))
        if self._closed_changed:
            yield RecordChange("state", "closed", None, encode(ranges_of(self.closed)))
        if self._trained_changed:
            yield RecordChange("state", "trained", None, encode(list(self._trained_ranges().ranges)))
        self._closed_changed = self._trained_changed = False

    def _changed_in_place(self) -> Iterator[RecordChange]:
        """Records that transitions change in place: whatever differs from its stored form. They are few."""
        stored, self._stored = self._stored, self._encoded()
        for key in {**self._stored, **stored}:
            if (now := self._stored.get(key)) != stored.get(key):
                yield RecordChange(*key, None, now)

    def _encoded(self) -> dict[tuple[str, str], bytes]:
        """The stored form of every record that is changed in place, by kind and field."""
        records = {("state", "run"): self.run, ("state", "freed"): self.freed, ("state", "batch"): self.batch}
        return {key: encode(record) for key, record in records.items() if record is not None}

    def take_moved(self) -> set[int]:
        """Tickets that came, went or changed their state since this was asked last; at first, all."""
        moved, self._moved = self._moved, set()
        return moved

    # --- reading ----------------------------------------------------------------------------

    def match(self, ticket: Ticket) -> list[Ticket]:
        """The tickets of a live ticket's match, in the order of their seats; itself alone if it has none."""
        if ticket.seats == 1 or ticket.frozen:
            return [ticket]
        return [self.tickets[number] for number in ticket.match]

    def place(self, purpose: Purpose, group: int) -> int:
        """A live group's place in the schedule of its purpose."""
        return self.tickets[self.groups[purpose][group][0]].index

    def counts(self) -> dict[str, int]:
        """Tickets by bucket. Their sum is the number of tickets issued."""
        totals = Counter({bucket: count for bucket, count in self.buckets.items() if count})
        for bucket, ids in self.closed.items():
            totals[bucket] += len(ids)
        return dict(totals)

    # --- restoring --------------------------------------------------------------------------

    def restore(self, records: Iterable[tuple[str, str, bytes]], now: float, lease_s: float) -> None:
        """Fills empty tables from stored (kind, field, data); leases count again from `now`."""
        self.now = now
        state: dict[str, Any] = {}
        for kind, field, data in records:
            record: Any = decode(kind, field, data)
            if kind in self._frozen:
                self._frozen[kind].set_unstored(int(field) if kind in NUMBERED else field, record)
            elif kind == "ticket":
                self._tickets[record.id] = record
                head = data.partition(b"|")[0].decode()
                if head != record.head:  # of a scheduler that stored every state with its ticket
                    self._touched[record.id] = head
            else:
                state[field] = record
        self.run, self.batch = state.get("run", self.run), state.get("batch")
        self.freed, trained = state.get("freed", []), RangeSet(state.get("trained", ()))
        closed = {bucket: RangeSet(ranges) for bucket, ranges in state.get("closed", {}).items()}
        self.closed = MappingProxyType(closed)
        self._restore_untouched()
        planned = frozenset([*self.batch.tickets, *self.batch.replays] if self.batch else ())
        for number in sorted(self.tickets):
            ticket = self.tickets[number]
            if ticket.state in BATCHED:
                derive_state(ticket, number in planned, number in trained)
            self._enter(ticket)
            if ticket.state is TicketState.LEASED:
                self.lease_since[number] = now
                self.lease_until.set(number, now + lease_s)
        self._trained_ranges()
        self._trained_changed = False
        self._stored = self._encoded()

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
            self._tickets |= {ticket.id: ticket for ticket in untouched}

    def _touch(self, ticket: Ticket) -> None:
        """Notes that the ticket's record is about to change, with the head of what is stored of it."""
        if ticket.id not in self._touched:
            self._touched[ticket.id] = "" if self._first_touch(ticket) else ticket.head

    def _first_touch(self, ticket: Ticket) -> bool:
        """Notes that the ticket gets a record of its own; returns whether it had none.

        With the last ticket of a group to get one, the group's record is deleted.
        """
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

    def _index(self, ticket: Ticket, *, joins: bool = True) -> None:
        """Enters a ticket into the indexes. joins: its worker did not hold it before."""
        number, state = ticket.id, ticket.state
        self._moved.add(number)
        self.state_since[number] = self.now
        self.buckets[ticket.bucket] += 1
        if state is TicketState.PENDING:
            self.pending.add(ticket)
        elif state in HELD:
            if joins:
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

    def _unindex(self, ticket: Ticket, *, leaves: bool = True) -> None:
        """Takes a ticket out of the indexes. leaves: its worker holds it no longer."""
        number, state = ticket.id, ticket.state
        self.buckets[ticket.bucket] -= 1
        if state is TicketState.PENDING:
            self.pending.remove(ticket)
            return
        if state not in HELD:
            self.kept.discard(number)
            if state is TicketState.TRAINED:
                self._count_trained(number, False)
                self._give_up_place(ticket)
            return
        if leaves:
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
