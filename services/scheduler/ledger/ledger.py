"""The ledger: who holds which ticket, in which state; exactly once, across any crash.

    issue ─► pending ─lease─► leased ─complete─► ready ─plan─► planned ─commit─► trained
                ▲               │ expired, failed   │ arena lost     │ arena lost and not read
                └───────────────┴───────────────────┴────────────────┘   (at most `attempts` tries)
    evaluation: leased ─complete─► evaluated        anything live ─► dropped(reason)
    replay: planned ─commit─► replayed              (issued with its batch, see replay_memory.py)

Promise: issued = trained ⊎ replayed ⊎ evaluated ⊎ dropped ⊎ live after every operation, and no ticket becomes
trained twice. Pure: time is an argument (monotonic seconds), nothing is read or written elsewhere;
the caller makes `tables.take_changes()` durable before it answers anyone. What an operation refuses
raises LedgerError (or UnknownWorker, WorkerReplaced) and has changed nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

from msgspec.structs import replace

from earl.errors import LedgerError
from earl.ticket_ranges import RangeSet
from services.scheduler.assign.plan import EngineKinds
from services.scheduler.ledger.admission import GroupCandidate, choose, places
from services.scheduler.ledger.attempts import TicketAttempts
from services.scheduler.ledger.groups import count_missing, may_close
from services.scheduler.ledger.lengths import TaskLengths
from services.scheduler.ledger.membership import Membership
from services.scheduler.ledger.pending import PendingTickets
from services.scheduler.ledger.planned_leases import PlannedLeases
from services.scheduler.ledger.replay_memory import ReplayMemory
from services.scheduler.ledger.successes import TaskSuccesses
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state.facts import BatchPlanned
from services.scheduler.state.rules import Rules
from services.scheduler.state.run import Batch, CommittedBatch
from services.scheduler.state.tickets import Attempt, Purpose, Reason, Ticket, TicketState

# A batch handed out more often than this to a trainer that does not commit cannot be read.
HANDOUTS = 5


class Ledger:
    """Workers (`membership`), their attempts at tickets (`attempts`), and the batches made of those.

    held_back: groups of training that no batch may take yet, though all their tickets are ready; may be a
    view. kinds: of rollout's engines, to plan leases with; None where none are planned.
    """

    def __init__(
        self, rules: Rules, held_back: Collection[int] = (), kinds: EngineKinds | None = None
    ) -> None:
        self.rules = rules
        self.tables = LedgerTables(PendingTickets(rules.batch_groups if rules.longest_first else 0))
        self.successes = TaskSuccesses(rules, self.tables)
        self.lengths = TaskLengths(rules, self.tables)
        # None where leases are not planned.
        self.planned: PlannedLeases | None = None
        if kinds is not None and rules.longest_first:
            self.planned = PlannedLeases(rules, self.tables, kinds, lambda: self.lengths.error.factor)
        self.attempts = TicketAttempts(rules, self.tables, self.successes, self.lengths, self.planned)
        self.membership = Membership(rules, self.tables, self.attempts)
        self.replay = ReplayMemory(rules, self.tables)
        self._held_back = held_back

    @classmethod
    def restored(
        cls,
        rules: Rules,
        records: Iterable[tuple[str, str, bytes]],
        now: float,
        held_back: Collection[int] = (),
        kinds: EngineKinds | None = None,
    ) -> Ledger:
        """The ledger of stored records; leases and memberships get their full time again from `now`."""
        ledger = cls(rules, held_back, kinds)
        ledger.tables.restore(records, now, rules.lease_s)
        for name in ledger.tables.workers:
            # It may know of a larger fleet.
            silent_s = max(ledger.membership.membership_s, ledger.tables.run.silent_s)
            ledger.tables.worker_until.set(name, now + silent_s)
        return ledger

    def expire(self, now: float) -> None:
        """Ends memberships and leases that have expired."""
        self.tables.now = now
        self.membership.expire(now)
        self.attempts.expire(now)

    def lease(
        self, name: str, incarnation: int, credit: int, now: float, newest_fence: int | None = None
    ) -> list[Ticket]:
        """Up to `credit` pending tickets, leased to this worker. newest_fence: of the tickets that it has;
        what was leased to it later is tried again. Raises UnknownWorker, WorkerReplaced."""
        worker = self.membership.mark_alive(name, incarnation, now)
        if newest_fence is not None:
            self.membership.retry_unreceived(worker, newest_fence)
        tickets = self.attempts.lease(worker, credit, now)
        if tickets:
            self.membership.leased(worker, tickets[-1].fence)
        return tickets

    def renew(self, name: str, incarnation: int, attempts: Sequence[Attempt], now: float) -> list[Attempt]:
        """Prolongs leases; returns the attempts whose leases are lost.

        Raises UnknownWorker, WorkerReplaced.
        """
        return self.attempts.renew(self.membership.mark_alive(name, incarnation, now), attempts, now)

    def issue_fence(self) -> int:
        """Counts the fence, which orders whatever is leased, and returns it."""
        self.tables.run.fence += 1
        return self.tables.run.fence

    def lose(self, number: int, attempt: int) -> None:
        """Tries a ticket again because what this attempt sampled can no longer be read.

        A planned ticket is only noted, until the trainer's next call tells whether it has read it.
        """
        ticket = self.tables.tickets.get(number)
        if ticket is None or ticket.attempt != attempt:
            return
        if ticket.state is TicketState.READY:
            self.attempts.fail(ticket)
        elif self.tables.batch is not None:
            self.tables.batch.lose(number)

    def score(self, number: int, attempt: int, score: float) -> None:
        """Notes the reward model's score of what this attempt sampled, if that is still wanted."""
        ticket = self.tables.tickets.get(number)
        if ticket is not None and ticket.attempt == attempt and ticket.result is not None:
            self.tables.change(ticket, result=replace(ticket.result, score=score))

    def record_elapsed(self, elapsed_s: float) -> None:
        """Notes for how long the run has worked, all its lives together."""
        self.tables.run.elapsed_s = elapsed_s

    def require_trainer(self, name: str, incarnation: int, now: float) -> None:
        """A sign of life of the trainer group. Raises LedgerError unless that one reconciled last."""
        run = self.tables.run
        self.membership.worker(name, incarnation)
        if (run.trainer, run.trainer_incarnation) != (name, incarnation):
            raise LedgerError(
                f"trainer {name} ({incarnation:x}) has not reconciled; "
                f"the ledger follows {run.trainer or 'nobody'} ({run.trainer_incarnation:x})",
                "call Reconcile with the manifest's contents first",
            )
        self.membership.mark_alive(name, incarnation, now)

    def hand_out_planned(self) -> Batch | None:
        """The batch in the trainer's hands, once more; None if there is none or it cannot be read."""
        batch = self.tables.batch
        if batch is None:
            return None
        if batch.lost or self._unreadable(batch):
            self.dissolve(all_lost=not batch.lost)
            return None
        batch.handouts += 1
        return batch

    def plan(self, purpose: Purpose, group_count: int, *, publish: bool, checkpoint: bool, progress: float,
             first_of_phase: bool) -> Batch | None:  # fmt: skip
        """Plans the next batch of `group_count` groups at the current version, or None if it must wait.

        Training batches obey the staleness bound; groups that nevertheless exceed it are dropped.
        """
        tables, run = self.tables, self.tables.run
        if tables.batch is not None:
            raise LedgerError(f"batch {tables.batch.id} is planned and not committed", "commit it first")
        chosen = self._choose(purpose, group_count)
        if chosen is None:
            return None
        numbers = [number for group in chosen for number in tables.groups[purpose][group]]
        tokens = 0
        for number in numbers:
            ticket = tables.tickets[number]
            tables.move(ticket, TicketState.PLANNED)
            tokens += ticket.result.total_tokens if ticket.result else 0
        replays = self.replay.issue(run.version) if purpose is Purpose.TRAIN else []
        tokens += sum(ticket.result.total_tokens for ticket in replays if ticket.result)
        tables.batch = Batch(
            id=run.next_batch, version=run.version, purpose=purpose, tickets=numbers, publish=publish,
            checkpoint=checkpoint, progress=progress, first_of_phase=first_of_phase, handouts=1,
            replays=[ticket.id for ticket in replays],
        )  # fmt: skip
        run.next_batch += 1
        sequences = len(numbers) + len(replays)
        tables.record_fact(BatchPlanned(tables.batch.id, run.version, sequences, tokens))
        tables.log.planned(tables.batch)
        return tables.batch

    def commit(self, batch_id: int, version: int) -> CommittedBatch | None:
        """The optimizer step on a batch is done; None if repeated."""
        run, batch = self.tables.run, self.tables.batch
        if batch is None or batch.id != batch_id:
            if batch_id and batch_id == run.last_batch:
                return None
            raise LedgerError(
                f"batch {batch_id} is not the planned one ({batch.id if batch else 'none is planned'})",
                "ask for the next batch and train that",
            )
        if version != batch.version + 1:
            raise LedgerError(
                f"batch {batch_id} was planned at version {batch.version}, its commit names {version}",
                f"a committed batch makes version {batch.version + 1}",
            )
        committed = self._train(batch)
        run.version = version
        self.tables.log.committed(batch)
        return committed

    def dissolve(self, *, all_lost: bool = False) -> None:
        """Takes the planned batch apart: what can still be read is ready again, the rest is retried."""
        tables, batch = self.tables, self.tables.batch
        if batch is None:
            return
        tables.batch = None
        tables.log.dissolved(batch)
        members = [tables.tickets[number] for number in batch.tickets]
        planned = [ticket for ticket in members if ticket.state is TicketState.PLANNED]
        for number in batch.replays:
            if tables.tickets[number].state is TicketState.PLANNED:
                tables.move(tables.tickets[number], TicketState.DROPPED, Reason.BATCH_DISSOLVED, result=None)
        for ticket in planned:
            tables.move(ticket, TicketState.READY)
        for ticket in planned:
            gone = all_lost or ticket.id in batch.lost
            if gone and ticket.state is TicketState.READY:
                self.attempts.fail(ticket)

    def lose_replays(self, numbers: Collection[int]) -> None:
        """The planned batch goes without the groups of these replay tickets: the trainer cannot read them.

        Others are ignored: the call may be repeated, and come late.
        """
        tables, batch = self.tables, self.tables.batch
        if batch is None or not numbers:
            return
        members = [tables.tickets[number] for number in batch.replays]
        groups = {ticket.group for ticket in members if ticket.id in numbers}
        lost = [ticket for ticket in members if ticket.group in groups]
        self.replay.lose(lost)
        for ticket in lost:
            tables.move(ticket, TicketState.DROPPED, Reason.COLUMNS_LOST, result=None)
        batch.replays = [ticket.id for ticket in members if ticket.group not in groups]

    def record_checkpoint(self, consumed: RangeSet, most: int = 0, version: int = 0) -> bool:
        """Compacts what is closed for good: trained and held by the checkpoint, evaluated, dropped.

        most: so many tickets in one go, 0 for all; whether there may be more. version: of the checkpoint, 0
        if that is recorded.
        """
        if version > self.tables.run.checkpoint:
            self.tables.run.checkpoint = version
            self.tables.run.next_checkpoint = max(version, self.tables.run.next_checkpoint)
            self.replay.record_checkpoint()
        closed_now: dict[str, list[int]] = {}
        count = 0
        version = self.tables.run.version
        due = {purpose: places(self.rules, purpose, version).start for purpose in Purpose}
        for number in sorted(self.tables.kept):
            ticket = self.tables.tickets[number]
            if ticket.state is TicketState.TRAINED and number not in consumed:
                continue
            if ticket.state is TicketState.TRAINED and ticket.index >= due[ticket.purpose]:
                continue  # it went ahead of slower ones: its place is not to be issued again
            closed_now.setdefault(ticket.bucket, []).append(ticket.id)
            self.tables.compact(ticket)
            count += 1
            if count == most:
                break
        if closed_now:
            closed = dict(self.tables.closed)
            for bucket, numbers in closed_now.items():
                closed[bucket] = closed.get(bucket, RangeSet()) | RangeSet.of(numbers)
            self.tables.close_ranges(closed)
        return count == most > 0

    def published(self, version: int, keys: Sequence[str]) -> None:
        """Takes note that a version's weights can be read under these registry keys."""
        self.tables.run.published = version
        self.tables.run.weight_keys = list(keys)
        self.tables.log.published(version)

    # --- within -----------------------------------------------------------------------------

    def _unreadable(self, batch: Batch) -> bool:
        """True if handing the batch out has failed for longer than a lost worker stays registered: no other
        cause will appear."""
        since = min((self.tables.state_since[number] for number in batch.tickets), default=0.0)
        return batch.handouts >= HANDOUTS and self.tables.now - since > self.membership.membership_s

    def _choose(self, purpose: Purpose, count: int) -> list[int] | None:
        """Groups in the order of their places, so that a batch does not show what finished when."""
        tables, rules, version = self.tables, self.rules, self.tables.run.version
        if purpose is not Purpose.TRAIN or rules.deterministic:
            return self._choose_next(purpose, count)
        if len(tables.whole[purpose]) + rules.close_groups < count:
            return None
        candidates = self._candidates()
        chosen = choose(candidates, version, count, rules.staleness)
        if chosen is None and self._close_late(candidates, count):
            # Columns of a closed group may be on their way.
            chosen = choose(self._candidates(), version, count, rules.staleness)
        return chosen and sorted(chosen, key=lambda group: tables.place(purpose, group))

    def _choose_next(self, purpose: Purpose, count: int) -> list[int] | None:
        """The groups of the next places, whatever else is complete; None while one of them is not."""
        tables, complete = self.tables, self.tables.whole[purpose]
        if purpose is Purpose.TRAIN:
            complete = {each.group for each in self._candidates() if each.complete}
        first = sorted(tables.groups[purpose], key=lambda group: tables.place(purpose, group))[:count]
        if len(first) < count or not complete.issuperset(first):
            return None
        due = places(self.rules, purpose, tables.run.version).start
        # A place before the last of them may be about to be issued again.
        earlier = range(due, tables.place(purpose, first[-1]))
        return first if all(place in tables.taken[purpose] for place in earlier) else None

    def _candidates(self) -> list[GroupCandidate]:
        """The groups of training; those that are too stale are dropped."""
        tables, rules, version = self.tables, self.rules, self.tables.run.version
        whole = tables.whole[Purpose.TRAIN]
        candidates = []
        for group, members in list(tables.groups[Purpose.TRAIN].items()):
            floor = min(tables.tickets[number].floor for number in members)
            if version - floor > rules.staleness and group in whole:
                self.attempts.drop_group(Purpose.TRAIN, group, Reason.TOO_STALE)
                continue
            complete = group in whole and group not in self._held_back
            candidates.append(GroupCandidate(group, floor + rules.staleness, complete))
        return candidates

    def _close_late(self, candidates: Sequence[GroupCandidate], count: int) -> bool:
        """Closes the groups that a batch of `count` waits for, if they are at most close_groups; returns
        whether it did.

        Closed are as few as possible, those first that must be trained first, of these the fullest. None is
        while the batch waits for columns of groups that are whole: closing another would gain nothing.
        """
        tables, rules = self.tables, self.rules
        whole, held_back = tables.whole[Purpose.TRAIN], self._held_back

        def chosen_with(complete: Container[int]) -> list[int] | None:
            counted = [replace(each, complete=each.group in complete) for each in candidates]
            return choose(counted, tables.run.version, count, rules.staleness)

        if chosen_with(whole) is not None:
            return False
        late = [
            (each.deadline, count_missing(tables, each.group), each.group)
            for each in candidates
            if each.group not in held_back and may_close(rules, tables, each.group)
        ]
        late.sort()
        ready = {each.group for each in candidates if each.complete}
        for number in range(max(1, count - len(ready)), min(rules.close_groups, len(late)) + 1):
            closed = {group for _, _, group in late[:number]}
            chosen = chosen_with(ready | closed)
            if chosen is not None:
                for group in sorted(closed.intersection(chosen)):
                    self.attempts.close_group(group)
                return True
        return False

    def _train(self, batch: Batch) -> CommittedBatch:
        """Moves the tickets of a batch from planned to trained, once."""
        tables, run = self.tables, self.tables.run
        seats: list[int] = []
        against: list[int] = []
        members = [tables.tickets[number] for number in batch.tickets]
        replays = [tables.tickets[number] for number in batch.replays]
        again = [ticket.result for ticket in replays if ticket.result is not None]
        committed = CommittedBatch(batch, [], [], seats, against, again)
        self.successes.add_trained(batch.version, members)
        self.lengths.add_trained(batch.version, members)
        if batch.purpose is Purpose.TRAIN:
            self.replay.train(batch.version, members, replays)
        if batch.checkpoint:
            run.next_checkpoint = batch.version + 1
        for ticket in replays:
            tables.move(ticket, TicketState.TRAINED, result=None)
        for ticket in members:
            if ticket.result is not None:
                committed.results.append(ticket.result)
                committed.environments.append(ticket.environment)
                seats.append(ticket.seat)
                if ticket.frozen:
                    against.append(ticket.min_version)
                if ticket.result.descriptor_key:
                    tables.freed.append(ticket.result.descriptor_key)
            tables.move(ticket, TicketState.TRAINED, result=None)
        tables.batch = None
        run.last_batch = batch.id
        self.attempts.free(0, batch.id, batch.version + 1)
        return committed
